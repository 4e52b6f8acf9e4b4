"""How a client verifies that it speaks to its own controller. This check cannot be turned off."""

import hashlib
import http.client
import ssl
from dataclasses import dataclass
from hmac import compare_digest

from distributed_grid.errors import CertificateUntrusted, InvalidRequest


@dataclass(frozen=True, slots=True)
class Trust:
    """The system's own authorities, unless one of these is given."""

    ca: str = ""
    """Certificates of authorities, in PEM format: one of them must have signed for the host's name."""
    sha256: str = ""
    """The controller's own certificate: the controller wrote this itself, to a file that only its owner can write."""

    def context(self) -> ssl.SSLContext:
        if self.sha256:
            # The certificate itself is compared, which is stricter than any name or signature.
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            return context
        if not self.ca:
            return ssl.create_default_context()
        try:
            return ssl.create_default_context(cadata=self.ca)
        except (ssl.SSLError, ValueError):
            raise InvalidRequest("The file given with --ca has no certificate in PEM format") from None


class PinnedConnection(http.client.HTTPSConnection):
    """Sends nothing to a server that does not show exactly this certificate."""

    def __init__(self, host: str, port: int | None, sha256: str, context: ssl.SSLContext, timeout: float) -> None:
        super().__init__(host, port, context=context, timeout=timeout)
        self._sha256 = sha256

    def connect(self) -> None:
        super().connect()
        shown = self.sock.getpeercert(binary_form=True) or b""
        if not compare_digest(hashlib.sha256(shown).hexdigest(), self._sha256):
            self.close()
            raise ssl.SSLCertVerificationError("it is not the one in controller.json")


def why_untrusted(host: str, error: ssl.SSLCertVerificationError) -> CertificateUntrusted:
    return CertificateUntrusted(
        f"The certificate that {host} shows is not trusted",
        because=[getattr(error, "verify_message", "") or str(error)],
        try_next="Log in by the name that is in the certificate; if an authority of your own signed it: "
        "grid login URL --ca FILE",
    )
