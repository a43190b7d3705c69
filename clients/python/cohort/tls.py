# SPDX-License-Identifier: Apache-2.0
"""TLS 1.3 under the handshake, as agents demand from other hosts.

The job's certificate authority is made from the token on either side, so there
are no files to hand around. Python's own ssl module cannot export the session's
key, which the handshake is bound to; pyOpenSSL can.
"""

import datetime
import hashlib
import hmac
import os
import selectors
import threading

try:
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF
    from cryptography.x509.name import _ASN1Type
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
    from OpenSSL import SSL, __version__ as _version
    if tuple(int(n) for n in _version.split(".")[:2]) < (24, 3):
        raise ImportError("pyOpenSSL is %s" % _version)
except ImportError as e:
    raise ImportError("tls=True wants the packages pyOpenSSL, of 24.3 or later, and cryptography: pip install 'cohort-client[tls]'") from e

from .connection import wait_for
from .errors import RPCError

_NAME = "member.cohort"
_LABEL = b"EXPORTER-cohort-transport"


def _authority(token):
    seed = HKDF(hashes.SHA256(), 32, None, b"cohort transport certificate authority").derive(token)
    return Ed25519PrivateKey.from_private_bytes(seed)


def _name(text):
    # Verifiers compare the issuer's bytes, and agents write printable strings.
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text, _ASN1Type.PrintableString)])


def _certificate(authority):
    """Returns a certificate by the authority and its key, both new."""
    key = Ed25519PrivateKey.generate()
    usage = dict.fromkeys(("content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
                           "key_cert_sign", "crl_sign", "encipher_only", "decipher_only"), False)
    cert = (x509.CertificateBuilder().subject_name(_name(_NAME)).issuer_name(_name("job.cohort"))
            .public_key(key.public_key()).serial_number(x509.random_serial_number())
            .not_valid_before(datetime.datetime(1970, 1, 1)).not_valid_after(datetime.datetime(9999, 12, 31, 23, 59, 59))
            .add_extension(x509.BasicConstraints(False, None), True)
            .add_extension(x509.KeyUsage(digital_signature=True, **usage), True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]), False)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(_NAME)]), False)
            .sign(authority, None))
    return cert, key


def _check(cert, authority):
    """Raises ValueError unless a certificate is a member's. Times are not held against a clock."""
    try:
        authority.public_key().verify(cert.signature, cert.tbs_certificate_bytes)
        names = cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value.get_values_for_type(x509.DNSName)
        uses = cert.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except (InvalidSignature, x509.ExtensionNotFound):
        raise ValueError("its certificate is not by the job's authority") from None
    if _NAME not in names or ExtendedKeyUsageOID.SERVER_AUTH not in uses:
        raise ValueError("its certificate is not a member's")


def wrap(conn, token):
    """Puts a session over a connection and returns its exported key."""
    authority = _authority(token)
    cert, key = _certificate(authority)
    ctx = SSL.Context(SSL.TLS_CLIENT_METHOD)
    ctx.set_min_proto_version(SSL.TLS1_3_VERSION)
    ctx.use_certificate(cert)
    ctx.use_privatekey(key)
    # What OpenSSL would check, it would check against a clock and a directory.
    ctx.set_verify(SSL.VERIFY_PEER, lambda *_: True)
    nonce = os.urandom(16)
    proof = hmac.new(token, b"cohort transport greeting\0" + nonce, hashlib.sha256)
    ctx.set_alpn_protos([b"cohort1." + (nonce.hex() + proof.hexdigest()).encode()])
    session = SSL.Connection(ctx, conn.sock)
    session.set_tlsext_host_name(_NAME.encode())
    session.set_connect_state()
    wrapped = _Socket(conn.sock, session)
    try:
        wrapped.run(session.do_handshake)
        peer = session.get_peer_certificate(as_cryptography=True)
        if peer is None:
            raise ValueError("it has no certificate")
        _check(peer, authority)
    except (OSError, EOFError, ValueError) as e:
        raise RPCError("unreachable", "the peer is no member of the job: its token differs, or it has no TLS (%s)" % e, peer=conn.peer) from None
    conn.sock = wrapped
    return session.export_keying_material(_LABEL, 32)


class _Socket:
    """A session as a socket that one thread reads while another writes, which OpenSSL's is not."""

    def __init__(self, sock, session):
        self.sock, self.session, self.lock = sock, session, threading.Lock()
        self.timeout = sock.gettimeout()
        sock.setblocking(False)

    def settimeout(self, seconds):
        self.timeout = seconds

    def run(self, step, *arguments):
        while True:
            try:
                with self.lock:
                    return step(*arguments)
            except SSL.WantReadError:
                event = selectors.EVENT_READ
            except SSL.WantWriteError:
                event = selectors.EVENT_WRITE
            except (SSL.ZeroReturnError, SSL.SysCallError):
                raise EOFError from None
            except SSL.Error as e:
                raise OSError("TLS: %s" % e) from None
            if not wait_for(self.sock, event, self.timeout):
                raise OSError("nothing came for %g s" % self.timeout)

    def recv(self, n):
        return self.run(self.session.recv, n)

    def recv_into(self, view):
        return self.run(self.session.recv_into, view)

    def send(self, data, _flags=0):
        """Sends some of data, or says that there is no room at once."""
        try:
            with self.lock:
                return self.session.send(data[:1 << 20])
        except (SSL.WantWriteError, SSL.WantReadError):
            raise BlockingIOError from None
        except (SSL.ZeroReturnError, SSL.SysCallError, SSL.Error) as e:
            raise OSError("TLS: %s" % e) from None

    def fileno(self):
        return self.sock.fileno()

    def shutdown(self, how):
        self.sock.shutdown(how)

    def close(self):
        self.sock.close()
