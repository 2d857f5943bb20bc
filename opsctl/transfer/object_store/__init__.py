"""Places for copies of files: a folder (`folder`), or a bucket of S3 or GCS (`fsspec_store`).

`urls.open_store` returns a Store, which sends, fetches and checks many files at once. A file counts when it is proven
where it went: a folder's file is fsynced, read back from the disk and renamed; an object is compared with the checksum
that the server computed (S3's ETag, GCS's MD5), and read back where the server has none. A killed transfer leaves files
of names that begin with `types.PART`, or an incomplete multipart upload: nothing that is called whole.
"""
