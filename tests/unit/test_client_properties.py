"""One file of settings for both of Kafka's clients: how it is read, and in which names each client gets it."""

from io import StringIO
from pathlib import Path

import javaproperties
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wakeroll.client_properties import InvalidConfigFile, librdkafka_settings, read_properties
from wakeroll.connection import Connection
from wakeroll.errors import InvalidUsage
from wakeroll.jaas import jaas_of, read_jaas
from wakeroll_pipeline.kafka.java_properties import java_settings
from wakeroll_pipeline.sources.kafka_source import kafka_options

PASSWORD = 'a"b\\c d;é'
SCRAM = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "SCRAM-SHA-512",
    "sasl.username": "billing",
    "sasl.password": PASSWORD,
}
JAAS = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="billing" password="a\\"b\\\\c d;é";'
JAVA_SCRAM = {"security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512", "sasl.jaas.config": JAAS}


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with files of keys and certificates, as far as they are read here."""
    monkeypatch.chdir(tmp_path)
    certificate = "-----BEGIN CERTIFICATE-----\nMII\n-----END CERTIFICATE-----\n"
    Path("ca.pem").write_text(certificate)
    Path("client.pem").write_text(f"-----BEGIN PRIVATE KEY-----\nMII\n-----END PRIVATE KEY-----\n{certificate}")
    Path("old.pem").write_text(f"-----BEGIN EC PRIVATE KEY-----\nMII\n-----END EC PRIVATE KEY-----\n{certificate}")
    return tmp_path


# --- the table of names ---


@pytest.mark.parametrize(
    ("librdkafka", "java"),
    [
        (SCRAM, JAVA_SCRAM),
        (
            {"security.protocol": "SSL", "ssl.ca.location": "ca.pem"},
            {"security.protocol": "SSL", "ssl.truststore.type": "PEM", "ssl.truststore.location": "ca.pem"},
        ),
        (
            {
                "security.protocol": "SSL",
                "ssl.certificate.location": "client.pem",
                "ssl.key.location": "client.pem",
                "ssl.key.password": "secret",
            },
            {
                "security.protocol": "SSL",
                "ssl.keystore.type": "PEM",
                "ssl.keystore.location": "client.pem",
                "ssl.key.password": "secret",
            },
        ),
        (
            {"security.protocol": "SSL", "ssl.keystore.location": "client.p12", "ssl.keystore.password": "secret"},
            {
                "security.protocol": "SSL",
                "ssl.keystore.type": "PKCS12",
                "ssl.keystore.location": "client.p12",
                "ssl.keystore.password": "secret",
            },
        ),
        (
            {"ssl.endpoint.identification.algorithm": "none"},
            {"ssl.endpoint.identification.algorithm": ""},
        ),
        ({"client.rack": "eu-1", "retry.backoff.ms": "50"}, {"client.rack": "eu-1", "retry.backoff.ms": "50"}),
    ],
)
@pytest.mark.usefixtures("files")
def test_either_client_s_names_serve_both(librdkafka, java):
    for given_names in (librdkafka, java):
        assert librdkafka_settings(given_names) == librdkafka
        assert java_settings(given_names) == java


def test_settings_that_only_one_client_has_reach_that_client_alone():
    settings = {"queued.max.messages.kbytes": "1024", "send.buffer.bytes": "2048", "fetch.max.wait.ms": "70"}

    assert librdkafka_settings(settings) == {"queued.max.messages.kbytes": "1024", "fetch.wait.max.ms": "70"}
    assert java_settings(settings) == {"send.buffer.bytes": "2048", "fetch.max.wait.ms": "70"}


def test_the_usual_names_of_the_mechanism_are_both_known():
    assert librdkafka_settings({**SCRAM, "sasl.mechanisms": "SCRAM-SHA-512"}) == SCRAM


def test_spark_gets_the_address_and_the_translated_login():
    ours = {"bootstrap.servers": "localhost:9092", "metadata.recovery.strategy": "rebootstrap"}

    options = kafka_options(Connection("localhost:9092", SCRAM))

    assert options == {f"kafka.{name}": value for name, value in {**ours, **JAVA_SCRAM}.items()}


# --- what no client should get ---


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"sasl.username": "u", "sasl.password": PASSWORD}, "security.protocol is PLAINTEXT, so it is not used"),
        ({"security.protocol": "SASL_SSL"}, "sasl.mechanism is not set; it must be one of: PLAIN, SCRAM-SHA-256"),
        ({**SCRAM, "sasl.password": ""}, "sasl.mechanism is SCRAM-SHA-512, which needs sasl.password"),
        ({**SCRAM, "sasl.jaas.config": JAAS.replace("a\\", "x\\")}, "sasl.password and sasl.jaas.config are both set"),
        ({**SCRAM, "sasl.mechanisms": "PLAIN"}, "sasl.mechanism and sasl.mechanisms are both set, and contradict"),
        ({**JAVA_SCRAM, "sasl.mechanism": "PLAIN"}, "ScramLoginModule, but sasl.mechanism is PLAIN"),
        ({**JAVA_SCRAM, "sasl.jaas.config": f"x required {PASSWORD};"}, "sasl.jaas.config cannot be read at character"),
        ({**JAVA_SCRAM, "sasl.jaas.config": "x required debug=true;"}, "has these options: debug; expected: username"),
        ({**JAVA_SCRAM, "sasl.jaas.config": "x"}, "sasl.jaas.config has another form; it must be: <login module>"),
        ({"ssl.truststore.location": "trust.jks"}, "ssl.truststore.type is JKS; it must be PEM"),
        ({"ssl.keystore.type": "JKS"}, "ssl.keystore.type is JKS; it must be PEM or PKCS12"),
    ],
)
def test_a_login_that_cannot_work_is_refused_without_its_secrets(settings, sentence):
    with pytest.raises(InvalidUsage) as refused:
        librdkafka_settings(settings)

    assert sentence in str(refused.value)
    assert PASSWORD not in str(refused.value)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            {"ssl.certificate.location": "client.pem", "ssl.key.location": "key.pem"},
            "with Spark, both must name one PEM file with the key and its certificates; to make it: cat KEY",
        ),
        ({"ssl.certificate.location": "old.pem", "ssl.key.location": "old.pem"}, "it must be PKCS #8; to convert it"),
        ({"ssl.certificate.location": "ca.pem", "ssl.key.location": "ca.pem"}, "ca.pem has 0 private keys"),
        ({"ssl.certificate.location": "no.pem", "ssl.key.location": "no.pem"}, "No such file or directory: 'no.pem'"),
        ({"ssl.ca.location": "/etc"}, "ssl.ca.location is '/etc'; with Spark, it must be a PEM file that exists"),
        ({"ssl.cipher.suites": "X"}, "the Kafka client of Spark has no setting for ssl.cipher.suites"),
        ({"enable.ssl.certificate.verification": "false"}, "no setting for enable.ssl.certificate.verification"),
        (
            {"security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER"},
            "sasl.mechanism is OAUTHBEARER; with Spark, it must be one of: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512",
        ),
    ],
)
@pytest.mark.usefixtures("files")
def test_a_login_that_spark_cannot_have_is_refused_and_librdkafka_takes_it(settings, sentence):
    """A setting of the security is never left out in silence."""
    librdkafka_settings(settings)

    with pytest.raises(InvalidUsage) as refused:
        java_settings(settings)

    assert sentence in str(refused.value)


def test_the_brokers_are_named_once():
    with pytest.raises(InvalidUsage, match=r"name bootstrap\.servers 'b:2', but bootstrap is 'a:1'"):
        Connection("a:1", {"bootstrap.servers": "b:2"})


def test_a_file_that_is_missing_is_named():
    """The error of Kafka's client does not name it."""
    with pytest.raises(InvalidUsage, match=r"ssl\.ca\.location is '/no\.pem', which does not exist"):
        Connection("a:1", {"security.protocol": "SSL", "ssl.ca.location": "/no.pem"}).admin()


@pytest.mark.parametrize(
    ("config", "login"),
    [
        (SCRAM, "'billing' by SCRAM-SHA-512 over SASL_SSL"),
        ({"security.protocol": "ssl", "ssl.certificate.location": "a.pem"}, "'a.pem' by certificate over SSL"),
        ({"security.protocol": "SSL"}, "a client without a login, over SSL"),
        ({}, "a client without a login, over PLAINTEXT"),
    ],
)
def test_a_connection_names_its_user_and_how_it_logs_in(config, login):
    assert Connection("a:1", config).login == login


def test_a_connection_shows_no_password():
    assert PASSWORD not in repr(Connection("a:1", SCRAM))


# --- the file ---


def test_a_file_in_librdkafka_s_names_is_taken_literally(tmp_path):
    """So were such files always read: a backslash in a password is a backslash."""
    file = tmp_path / "client.properties"
    file.write_text("# a login\n! too\n\nsasl.username = billing\nsasl.password=a\\b=c\\\n")

    assert read_properties(file) == {"sasl.username": "billing", "sasl.password": "a\\b=c\\"}


def test_a_file_in_java_s_names_is_read_as_java_reads_it(tmp_path):
    file = tmp_path / "client.properties"
    file.write_text(
        "security.protocol=SASL_SSL\n"
        "sasl.mechanism=SCRAM-SHA-512\n"
        "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required \\\n"
        '    username="billing" \\\n'
        '    password="a\\\\"b\\\\\\\\c d;\\u00e9";\n'
    )

    assert librdkafka_settings(read_properties(file)) == SCRAM


@pytest.mark.parametrize(
    "name", ["ssl.key.pem", "ssl.keystore.key", "ssl.keystore.certificate.chain", "ssl.truststore.certificates"]
)
def test_a_key_in_the_file_itself_is_refused(tmp_path, name):
    """Spark's plan of a stream shows its options, and a key among them."""
    file = tmp_path / "client.properties"
    file.write_text(f"client.id=x\n{name}=-----BEGIN PRIVATE KEY-----MIISECRET\n")

    with pytest.raises(InvalidConfigFile) as refused:
        read_properties(file)

    assert f"line 2: {name} contains the text of a key or certificate" in str(refused.value)
    assert "MIISECRET" not in str(refused.value)


@pytest.mark.parametrize("line", ["sasl.password {0}", "={0}", "ssl.truststore.type=PEM\nx\\\n{0}"])
def test_a_line_that_is_no_setting_is_not_quoted(tmp_path, line):
    """It may be half of a password."""
    file = tmp_path / "client.properties"
    secret = PASSWORD.replace(" ", "")
    file.write_text(line.format(secret))

    with pytest.raises(InvalidConfigFile) as refused:
        read_properties(file)

    assert str(refused.value) == f"{file} line {1 + line.count('PEM')} is not a setting; it must be name=value"


def test_a_colon_is_a_separator_as_in_java(tmp_path):
    file = tmp_path / "client.properties"
    file.write_text("security.protocol: SASL_SSL\nsasl.mechanism : PLAIN\nsasl.username=a:b\n")

    assert read_properties(file) == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "a:b",
    }


def test_an_escaped_blank_does_not_swallow_the_next_setting(tmp_path):
    file = tmp_path / "client.properties"
    file.write_text("ssl.truststore.type=PEM\nssl.key.password=a\\ \nsasl.mechanism=PLAIN\n")

    assert read_properties(file) == {
        "ssl.truststore.type": "PEM",
        "ssl.key.password": "a",  # Kafka's Java client removes blanks around a value too
        "sasl.mechanism": "PLAIN",
    }


@given(st.lists(st.text(alphabet="ab\\\\=: \t\f#!u0éx\u2028\x85", max_size=12), max_size=6))
def test_a_java_file_is_read_as_another_reader_of_java_files_reads_it(tmp_path_factory, lines):
    """The other one is the package javaproperties, which the SDK does not need."""
    text = "\n".join(["ssl.truststore.type=PEM", *lines])
    file = tmp_path_factory.mktemp("java") / "client.properties"
    file.write_text(text, encoding="utf-8", newline="\n")
    try:
        parsed = [one for one in javaproperties.parse(StringIO(text)) if isinstance(one, javaproperties.KeyValue)]
    except javaproperties.InvalidUEscapeError:
        return
    try:
        found = read_properties(file)
    except InvalidConfigFile:
        assert any(not one.key or not one.value for one in parsed)
    else:
        assert found == {one.key: one.value.strip() for one in parsed}


# --- the line of a Java login ---


@given(st.text(min_size=1), st.text(min_size=1))
def test_a_login_line_is_read_back_as_it_was_written(username, password):
    login = read_jaas(jaas_of("PLAIN", username, password))

    assert (login.username, login.password) == (username, password)
    assert "\n" not in jaas_of("PLAIN", username, password)


def test_a_login_line_of_others_may_have_other_quotes_and_order():
    line = "a.B REQUIRED\n  password='it''s' username=billing ;"
    with pytest.raises(InvalidUsage):
        read_jaas(line)

    assert read_jaas("a.B REQUIRED\n  password='it is' username=billing ;") == ("a.B", "billing", "it is")
    assert "it is" not in repr(read_jaas("a.B required password='it is' username=billing;"))
