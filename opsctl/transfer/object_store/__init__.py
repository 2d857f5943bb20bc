"""Places for copies of files: another folder, S3, what else fsspec knows; one engine that fills and reads them."""
