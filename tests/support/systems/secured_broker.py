"""A real broker with TLS, logins and an authorizer: it denies everything that no ACL allows."""

import json
import secrets
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from tests.support.systems.certificates import Authority
from wakeroll.connection import Connection, Topics
from wakeroll.jaas import jaas_of
from wakeroll_pipeline.local.broker import PORTS, EmbeddedBroker

ADMIN = "admin"
"""A user that may do everything."""
MECHANISM = "SCRAM-SHA-512"
_BROKER = "broker"
ANSWER_S = 60.0


class SecuredBroker:
    """A running broker at `localhost` whose users log in by SCRAM over TLS, or by a certificate of their own."""

    def __init__(self, folder: Path, users: Iterable[str], *, by_certificate: bool = False) -> None:
        """Make certificates and passwords; the `with` statement starts the broker.

        Args:
            folder: of the broker, of its certificates and of the settings of its users.
            users: names of the users beside `ADMIN`; they may do nothing yet.
            by_certificate: users have certificates instead of passwords.
        """
        self.folder = folder
        self.authority = Authority(folder / "certificates")
        self.by_certificate = by_certificate
        self._port = _free_port()
        # Each is a word that occurs nowhere by chance; those of users have letters that must be escaped somewhere.
        self.passwords = {user: secrets.token_hex(8) for user in (ADMIN, _BROKER)}
        self.passwords |= {user: f'{user} "\\{secrets.token_hex(8)}' for user in users}
        self._certificates = {user: self.authority.certify(user) for user in (ADMIN, *users)} if by_certificate else {}
        own = self._certify_broker()
        self._broker = EmbeddedBroker(
            folder / "broker",
            port=self._port,
            settings=self._settings(own),
            login=self.login(ADMIN),
            format_options=() if by_certificate else self._first_users(),
        )

    def __enter__(self) -> Self:
        self._broker.start()
        if not self.by_certificate:
            self._add_users()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._broker.stop()

    @property
    def bootstrap(self) -> str:
        """The address of the broker, as its certificate names it."""
        return f"localhost:{self._port}"

    @property
    def log(self) -> Path:
        """Kafka's log file."""
        return self._broker.log

    def login(self, user: str, password: str | None = None) -> dict[str, str]:
        """Return the client settings of a user, in librdkafka's names; with another password if one is given."""
        trust = {"ssl.ca.location": str(self.authority.certificate)}
        if self.by_certificate:
            own = str(self._certificates[user])
            return {
                "security.protocol": "SSL",
                **trust,
                "ssl.certificate.location": own,
                "ssl.key.location": own,
            }
        return {
            "security.protocol": "SASL_SSL",
            **trust,
            "sasl.mechanism": MECHANISM,
            "sasl.username": user,
            "sasl.password": self.passwords[user] if password is None else password,
        }

    def java_login(self, user: str) -> dict[str, str]:
        """Return the same in the names of Java clients."""
        trust = {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(self.authority.certificate)}
        if self.by_certificate:
            own = {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(self._certificates[user])}
            return {"security.protocol": "SSL", **trust, **own}
        return {
            "security.protocol": "SASL_SSL",
            **trust,
            "sasl.mechanism": MECHANISM,
            "sasl.jaas.config": jaas_of(MECHANISM, user, self.passwords[user]),
        }

    def properties(self, user: str, *, java: bool = False, password: str | None = None) -> Path:
        """Write the settings of a user to a file for --kafka-config, readable by its owner only."""
        file = self.folder / f"{user}{'-java' if java else ''}{'' if password is None else '-wrong'}.properties"
        settings = self.java_login(user) if java else self.login(user, password)
        lines = [f"{name}={_escaped(value) if java else value}\n" for name, value in settings.items()]
        file.touch(mode=0o600)
        file.write_text("".join(lines))
        return file

    def connection(self, user: str, prefix: str = "wakeroll") -> Connection:
        """Return a user's connection."""
        return Connection(self.bootstrap, self.login(user), Topics(prefix))

    def allow(self, acls: str) -> None:
        """Create the ACLs that `wakeroll acls --json` printed."""
        bindings = [_binding(entry) for entry in json.loads(acls)["acls"]]
        admin = self.connection(ADMIN).admin()
        for future in admin.create_acls(bindings).values():
            future.result(ANSWER_S)

    def forbid(self, user: str, topic: str, operation: str) -> None:
        """Delete the ACL of a user for one operation on a topic."""
        assert self._delete(_filter(user, topic, AclOperation[operation])), f"{user} had {operation} on {topic}"

    def forbid_group(self, user: str, group: str) -> None:
        """Delete the ACLs of a user for a group of Kafka's own."""
        which = AclBindingFilter(
            ResourceType.GROUP,
            group,
            ResourcePatternType.ANY,
            f"User:{user}",
            None,
            AclOperation.ANY,
            AclPermissionType.ANY,
        )
        assert self._delete(which), f"{user} had a right on the group {group}"

    def forbid_everything(self, user: str) -> None:
        """Delete all ACLs of a user, and wait until the broker applies that."""
        self._delete(_filter(user))

    def _delete(self, which: AclBindingFilter) -> int:
        admin = self.connection(ADMIN).admin()
        [future] = admin.delete_acls([which]).values()
        return len(future.result(ANSWER_S))

    def _first_users(self) -> list[str]:
        """Return the options of StorageTool for the users that must exist before the broker starts."""
        users = (f"{MECHANISM}=[name={user},password={self.passwords[user]}]" for user in (ADMIN, _BROKER))
        return [word for user in users for word in ("--add-scram", user)]

    def _certify_broker(self) -> Path:
        return self.authority.certify(_BROKER, ["DNS:localhost", "IP:127.0.0.1"])

    def rotate(self, *users: str) -> None:
        """Give users other passwords; open connections stay open until `restart`.

        With certificates, another authority certifies the broker and all users, in the same files.
        """
        if self.by_certificate:
            self.authority = Authority(self.authority.folder)
            for user in self._certificates:
                self.authority.certify(user)
            self._certify_broker()
            return
        for user in users:
            self.passwords[user] = secrets.token_hex(8)
        self._set_passwords(users)

    def restart(self) -> None:
        """Stop the broker, and start it again on the same port."""
        self._broker.stop()
        self._broker.start()

    def _add_users(self) -> None:
        self._set_passwords([user for user in self.passwords if user not in (ADMIN, _BROKER)])

    def _set_passwords(self, users: Iterable[str]) -> None:
        mechanism = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4_096)
        added = [UserScramCredentialUpsertion(user, mechanism, self.passwords[user].encode()) for user in users]
        admin = self.connection(ADMIN).admin()
        for future in admin.alter_user_scram_credentials(added).values():
            future.result(ANSWER_S)

    def _settings(self, own: Path) -> Mapping[str, str]:
        clients = "SSL" if self.by_certificate else "SASL_SSL"
        settings = {
            "advertised.listeners": f"CLIENTS://{self.bootstrap}",
            "listener.security.protocol.map": f"CLIENTS:{clients},CONTROLLER:{clients}",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(own),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.authority.certificate),
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": f"User:broker;User:{ADMIN}",
            "allow.everyone.if.no.acl.found": "false",
        }
        if self.by_certificate:
            return settings | {
                "ssl.client.auth": "required",
                "ssl.principal.mapping.rules": r"RULE:^CN=(.*?)$/$1/,DEFAULT",
            }
        plain = _plain(_BROKER, "of the controller")
        return settings | {
            "sasl.enabled.mechanisms": MECHANISM,
            "sasl.mechanism.inter.broker.protocol": MECHANISM,
            "listener.name.clients.sasl.enabled.mechanisms": MECHANISM,
            "listener.name.clients.scram-sha-512.sasl.jaas.config": jaas_of(
                MECHANISM, _BROKER, self.passwords[_BROKER]
            ),
            # The controller runs before the SCRAM records can be read.
            "sasl.mechanism.controller.protocol": "PLAIN",
            "listener.name.controller.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.controller.plain.sasl.jaas.config": plain,
        }


def _plain(user: str, password: str) -> str:
    return jaas_of("PLAIN", user, password).replace(";", f' user_{user}="{password}";')


def _escaped(value: str) -> str:
    """Return a value as it stands in a file that Java reads."""
    return value.replace("\\", "\\\\")


def _binding(entry: Mapping[str, str]) -> AclBinding:
    return AclBinding(
        ResourceType[entry["resource_type"]],
        entry["resource_name"],
        ResourcePatternType[entry["pattern_type"]],
        entry["principal"],
        entry["host"],
        AclOperation[entry["operation"]],
        AclPermissionType[entry["permission_type"]],
    )


def _filter(user: str, topic: str | None = None, operation: AclOperation = AclOperation.ANY) -> AclBindingFilter:
    kind = ResourceType.ANY if topic is None else ResourceType.TOPIC
    allowed = AclPermissionType.ANY
    return AclBindingFilter(kind, topic, ResourcePatternType.ANY, f"User:{user}", None, operation, allowed)


def _free_port() -> int:
    """Return a port below those that systems assign, as the embedded broker chooses them."""
    while True:
        port = PORTS.start + secrets.randbelow(len(PORTS))
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                return port
