"""What every process needs: files, hosts, stopping, folder locks, errors and checksums."""
