"""The ground of every process: files, hosts, stopping, folder locks, errors and checksums."""
