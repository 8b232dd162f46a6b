"""What every process needs: files, hosts, stopping, leases, errors and checksums."""
