"""Asking S3 through botocore's client: patient with what passes, and with errors in a line without a secret."""

from __future__ import annotations

from typing import Any

from opsctl.transfer.object_store.flow import Flow, Stopped
from opsctl.transfer.object_store.retry_policy import Passing, Patience
from opsctl.transfer.object_store.types import Access, FileFault, StoreError
from trainer.formats.distribution import install_command

#: Codes that pass, beside every 429 and 5xx.
_PASSING = {"SlowDown", "RequestTimeout", "Throttling", "ThrottlingException", "TooManyRequests"}
_MISSING = {"404", "NoSuchKey", "NotFound", "NoSuchUpload"}
_FULL = "takes no more: it is full"
_DENIED = "denies access"
_SERVER = "AWS_ENDPOINT_URL names a server that is not Amazon's"
_REFUSED = {
    "InvalidAccessKeyId": "does not know the access key",
    "SignatureDoesNotMatch": "does not take the secret key",
    "ExpiredToken": "says that the session's token has expired",
    "InvalidToken": "does not take the session's token",
    "AccessDenied": _DENIED,
    "AllAccessDisabled": _DENIED,
    "403": _DENIED,
    "RequestTimeTooSkewed": "says that this machine's clock is wrong",
    "NoSuchBucket": f"has no such bucket: make it, or correct the URL; {_SERVER}",
    "InvalidBucketName": "has no bucket of that name: correct the URL",
    "QuotaExceeded": "takes no more: the quota is used up",
    "XMinioStorageFull": _FULL,
    "InsufficientStorage": _FULL,
}
_OF_CREDENTIALS = ("InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken")
_REMEDY = (
    f"see AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_PROFILE and ~/.aws/credentials; {_SERVER}"
)


class S3Fault(FileFault):
    """The server refuses what was asked about one name, with a code."""

    def __init__(self, text: str, code: str) -> None:
        super().__init__(text)
        self.code = code


class S3Missing(S3Fault):
    """There is no such object, or no such upload."""


class S3Calls:
    """Calls about one bucket."""

    def __init__(self, where: str, bucket: str, access: Access, connections: int) -> None:
        self.where, self._bucket = where, bucket
        self._client = _make_client(where, access, connections)
        self._patience = Patience(where, access.patience_s, passing)

    def __call__(self, operation: str, name: str, flow: Flow, **arguments: Any) -> dict[str, Any]:
        """The answer to `operation`. Raises S3Missing, S3Fault, StoreError, Stopped, and what a body raises."""
        ask = getattr(self._client, operation)
        body: Any = arguments.get("Body")

        def once() -> Any:
            if hasattr(body, "seek"):
                body.seek(0)
            try:
                return ask(Bucket=self._bucket, **arguments)
            except Exception as error:
                of_body = getattr(error, "kwargs", {}).get("error")
                if isinstance(of_body, FileFault | Stopped):
                    raise of_body from None
                raise

        try:
            return dict(self._patience(once, flow))
        except Exception as error:
            if type(error).__module__.partition(".")[0] not in ("botocore", "urllib3"):
                raise
            raise self.said(error, name) from None

    def said(self, error: Exception, name: str) -> StoreError | FileFault:
        """The error that ends it, in one line without a secret."""
        from botocore.exceptions import ClientError, NoCredentialsError

        if isinstance(error, NoCredentialsError):
            return StoreError(f"{self.where}: there are no credentials here: {_REMEDY}")
        if not isinstance(error, ClientError):
            return StoreError(f"{self.where}: {type(error).__name__} about {name!a}")
        code, status = _code_and_status(error)
        if code in _REFUSED:
            remedy = f": {_REMEDY}" if code in _OF_CREDENTIALS else ""
            return StoreError(f"{self.where}: the server {_REFUSED[code]} ({code}){remedy}")
        text = f"{self.where}: the server answers {status} {code} about {name!a}"
        if code in _MISSING:
            return S3Missing(f"{name!a} is not in {self.where}", code)
        return S3Fault(text, code) if status in (400, 404, 412, 416) else StoreError(text)

    def close(self) -> None:
        """Let go of the connections."""
        self._client.close()


def _make_client(where: str, access: Access, connections: int) -> Any:
    """A client that repeats nothing by itself. Raises StoreError without the package, or where its settings are wrong.

    Credentials, region and endpoint are looked for where every program of S3 looks for them.
    """
    try:
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError
        from botocore.session import Session
    except ImportError:
        raise StoreError(f"{where} needs a package that is not here: {install_command('s3')}") from None
    config = Config(
        connect_timeout=access.connect_timeout_s,
        read_timeout=access.answer_timeout_s,
        retries={"total_max_attempts": 1},
        max_pool_connections=connections,
        # Ours, an MD5, goes with every part as a header that is signed: all servers check it, also without TLS.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        s3={"payload_signing_enabled": False},
    )
    try:
        session = Session()
        return session.create_client(
            "s3",
            region_name=session.get_config_variable("region") or "us-east-1",
            endpoint_url=access.endpoint,
            aws_access_key_id=access.key,
            aws_secret_access_key=access.secret,
            config=config,
        )
    except (BotoCoreError, ValueError) as error:
        raise StoreError(f"{where} cannot be used: {error}") from None


def passing(error: Exception) -> Passing | None:
    """What passes: a busy or broken server, a connection that was refused, cut or silent."""
    from botocore import exceptions
    from botocore.parsers import ResponseParserError

    cut = (exceptions.ConnectionError, exceptions.HTTPClientError, exceptions.IncompleteReadError, ResponseParserError)

    if isinstance(error, exceptions.ClientError):
        code, status = _code_and_status(error)
        if code in _REFUSED or not (status == 429 or status >= 500 or code in _PASSING):
            return None
        asked = error.response.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("retry-after", "")
        return Passing(f"the server answers {status} {code}", float(asked) if asked.isdigit() else None)
    if isinstance(error, cut):
        return Passing(f"no whole answer came ({type(error).__name__})")
    if isinstance(error, OSError) or type(error).__module__.startswith("urllib3"):
        return Passing(f"the connection broke ({type(error).__name__})")
    return None


def _code_and_status(error: Any) -> tuple[str, int]:
    answer = error.response
    return str(answer.get("Error", {}).get("Code", "")), answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
