"""The file of keys: what stands in it, who may read it, and what a mistake in it is called."""

from pathlib import Path

import pytest

from tests.support.closed_port import closed_port
from wakeroll.errors import InvalidUsage
from wakeroll.keys import (
    DEV_WARNING,
    InvalidKeys,
    add_key,
    client_key_for,
    create_keys,
    entry_of,
    key_to_sign,
    new_client_key,
    new_key,
    new_signer,
    public_half,
    read_keys,
    warning_of,
)
from wakeroll_model.signing import DEV_KEYS, Key, Keys
from wakeroll_pipeline.cli.settings_sources import load

SECRET = "deadbeef" * 8
ONE_OF = "key 'ops' in {file} must have a role and one of secret, private_key, public_key, and nothing else"


@pytest.fixture
def file(tmp_path) -> Path:
    return tmp_path / "keys.toml"


def test_what_is_written_is_read_in_its_order(file):
    """The last key of a role signs, so the order says which."""
    keys = [new_key("operator", "ops-1"), new_key("observer", algorithm="ed25519"), new_key("operator", "ops-2")]
    for key in keys:
        add_key(file, key)

    assert list(read_keys(file).by_id.values()) == keys
    assert key_to_sign(read_keys(file), "operator").key_id == "ops-2"
    assert file.stat().st_mode & 0o777 == 0o600


def test_new_keys_differ():
    keys = [new_key("observer") for _ in range(50)]

    assert len({key.key_id for key in keys}) == len({key.secret for key in keys}) == 50
    assert all(len(key.secret) == 32 for key in keys)


def test_two_signers_of_one_process_have_different_names():
    """Ticks, routes and arrivals come from threads of their own: each counts for itself."""
    key = new_key("observer")

    assert new_signer(key).sign("t", 0, None, b'{"type":"tick"}', 0) != new_signer(key).sign(
        "t", 0, None, b'{"type":"tick"}', 0
    )


def test_without_a_file_the_development_keys_are_used_and_that_is_said():
    assert read_keys(None) == DEV_KEYS
    assert warning_of(None) == DEV_WARNING
    assert load({}).read_keys() == DEV_KEYS


def test_the_setting_names_the_file(file):
    add_key(file, new_key("observer", "obs-1"))

    settings = load({"WAKEROLL_KEYS": str(file)})

    assert list(settings.read_keys().by_id) == ["obs-1"]
    assert settings.environment()["WAKEROLL_KEYS"] == str(file)


@pytest.mark.parametrize(("mode", "warns"), [(0o600, False), (0o440, False), (0o644, True), (0o602, True)])
def test_a_file_that_everybody_may_read_is_warned_of(file, mode, warns):
    """A group may: secrets that a cluster mounts belong to one."""
    add_key(file, new_key("observer"))
    file.chmod(mode)

    expected = f"every user of this machine may use the keys in {file} (mode {mode:o}); to fix this: chmod 600 {file}"
    assert warning_of(file) == (expected if warns else "")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "there is no key in {file}; `wakeroll keys new --role ROLE --file {file}` adds one"),
        (f"{SECRET}", "the keys in {file} are not TOML; `wakeroll keys new` prints a valid entry"),
        (f'secret = "{SECRET}"', "an entry in {file} must have an id, a role and a key"),
        (f'["{SECRET}"]\nrole = "operator"\nsecret = "{SECRET}"', "an entry in {file} must have an id"),
        (f'[ops]\nsecret = "{SECRET}"', ONE_OF),
        (f'[ops]\nrole = "operator"\nsecret = "{SECRET}"\nvalid = true', ONE_OF),
        (f'[ops]\nrole = "operator"\nsecret = "{SECRET}"\nprivate_key = "{SECRET}"', ONE_OF),
        ('[ops]\nrole = "operator"', ONE_OF),
        (
            f'[ops]\nrole = "operator"\nprivate_key = "{SECRET}0"',
            "the private_key of key 'ops' in {file} must be 64 hex",
        ),
        ('[ops]\nrole = "operator"\npublic_key = "x"', "the public_key of key 'ops' in {file} must be 64 hex digits"),
        (
            f'[ops]\nrole = "operator"\npublic_key = "{"0" * 64}"',
            "the public_key of key 'ops' in {file} is a point of small order, by which anybody could sign",
        ),
        (
            f'[ops]\nrole = "operator"\npublic_key = "02{"0" * 62}"',
            "the public_key of key 'ops' in {file} is not a point of the curve; was it copied as a whole?",
        ),
        (
            f'[ops]\nrole = "{SECRET}"\nsecret = "x"',
            "the role of key 'ops' in {file} must be operator, observer or client",
        ),
        (f'[ops]\nrole = "operator"\nsecret = "{SECRET}0"', "the secret of key 'ops' in {file} must be 64 hex digits"),
        (f'[ops]\nrole = "operator"\nsecret = "{SECRET.upper()}"', "the secret of key 'ops' in {file} must be 64 hex"),
        ('[ops]\nrole = "operator"\nsecret = 7', "the secret of key 'ops' in {file} must be 64 hex digits"),
    ],
)
def test_a_mistake_in_the_file_is_named_without_its_secrets(file, text, sentence):
    file.write_text(text)

    with pytest.raises(InvalidKeys) as mistake:
        read_keys(file)

    assert str(mistake.value).startswith(sentence.format(file=file))
    assert SECRET not in str(mistake.value).lower()


@pytest.mark.parametrize("content", ["", "\n", "# keys of production\n", "# without an end of line"])
def test_a_key_is_added_to_a_file_without_keys(file, content):
    """As the message about such a file advises, and as a tool leaves it that creates files with their modes."""
    file.write_text(content)

    add_key(file, new_key("operator", "ops-1"))
    add_key(file, new_key("observer", "obs-1"))

    assert [key_id for key_id, _ in read_keys(file).roles()] == ["ops-1", "obs-1"]
    assert file.read_text().startswith(content)
    with pytest.raises(InvalidKeys, match="already has a key 'ops-1'"):
        add_key(file, new_key("operator", "ops-1"))


def test_a_file_that_is_not_there_is_a_mistake_with_a_sentence(file):
    with pytest.raises(InvalidKeys, match=r"cannot read the keys in .*keys\.toml: .*No such file"):
        read_keys(file)


def test_a_role_without_a_key_cannot_sign():
    keys = Keys.of([Key("obs-1", "observer", bytes(32))])

    with pytest.raises(InvalidKeys, match="there is no key of the role operator to sign with; keys found: obs-1"):
        key_to_sign(keys, "operator")


def test_a_public_key_does_not_sign_and_a_sentence_names_it():
    ops, tenant = new_key("operator", "ops-1", "ed25519"), new_client_key("a.", "a-1", "ed25519")
    keys = Keys.of([public_half(ops)], [public_half(tenant)])

    with pytest.raises(InvalidKeys) as as_operator:
        key_to_sign(keys, "operator")
    with pytest.raises(InvalidKeys, match="the key 'a-1' of the role client is a public key, which only verifies"):
        client_key_for(keys.clients, "a.billing")

    assert str(as_operator.value) == (
        "the key 'ops-1' of the role operator is a public key, which only verifies; to sign, name the file with its "
        "private key"
    )
    assert keys.roles() == [("ops-1", "operator, public key"), ("a-1", "client of a.*, public key")]


@pytest.mark.parametrize(
    "words",
    [
        ("configure", "billing"),
        ("kick", "billing", "c1"),
        ("delete-group", "billing"),
        ("pause", "billing"),
        ("reset-offsets", "billing", "--to-first", "--execute"),
        ("skip", "billing", "orders-3", "--execute"),
        ("import-offsets", "billing", "--execute"),
        ("upgrade", "--execute"),
        ("keys", "publish", "--execute"),
    ],
)
def test_a_command_that_cannot_sign_says_so_before_it_waits_for_a_broker(wakeroll, tmp_path, words):
    """There is none, which costs ten seconds and hides the mistake."""
    add_key(tmp_path / "public.toml", public_half(new_key("operator", "ops-1", "ed25519")))
    given = ("--keys", str(tmp_path / "public.toml"), "--home", str(tmp_path / "home"))

    with closed_port() as port:
        code, _, said = wakeroll(*words, *given, "--bootstrap", f"127.0.0.1:{port}")

    assert code == 2
    assert "the key 'ops-1' of the role operator is a public key, which only verifies" in said


def test_the_last_key_that_can_sign_does():
    """A page has the operator's private key, and public ones of others, in any order."""
    first, second, third = (new_key("operator", f"ops-{number}", "ed25519") for number in range(3))

    assert key_to_sign(Keys.of([first, second, public_half(third)]), "operator") == second


def test_the_public_keys_of_a_file_are_written_for_who_verifies(wakeroll, file, tmp_path):
    """For a page that everybody may look into: its file has nothing that signs, and may be read."""
    public = tmp_path / "public.toml"
    for key in (new_key("operator", "ops-1", "ed25519"), new_client_key("a.", "a-1", "ed25519")):
        add_key(file, key)
    private = [key.secret.hex() for key in read_keys(file).all]

    written = wakeroll("keys", "public", "--file", str(file), "--to", str(public))
    again = wakeroll("keys", "public", "--file", str(file), "--to", str(public))
    printed = wakeroll("keys", "public", "--file", str(public))

    assert written[:2] == again[:2] == (0, f"wrote the public keys ops-1, a-1 to {public}\n")
    assert printed[:2] == (0, public.read_text())
    assert read_keys(public).all == tuple(public_half(key) for key in read_keys(file).all)
    assert not any(secret in public.read_text() for secret in private)
    assert (public.stat().st_mode & 0o777, warning_of(public)) == (0o644, "")
    public.chmod(0o646)
    assert warning_of(public) == (
        f"every user of this machine may change the keys that verify, in {public} (mode 646); to fix this: chmod o-w "
        f"{public}"
    )


def test_public_keys_do_not_replace_private_ones(wakeroll, file, tmp_path):
    """They may be the last copy; nor has the secret of an HMAC a public half."""
    add_key(file, new_key("operator", "ops-1", "ed25519"))
    before = file.read_text()
    lost = wakeroll("keys", "public", "--file", str(file), "--to", str(file))
    add_key(file, new_key("observer", "obs-1", "hmac"))
    half = wakeroll("keys", "public", "--file", str(file), "--to", str(tmp_path / "public.toml"))

    assert lost[0] == half[0] == 2
    assert f"{file} has keys that sign, and is not replaced; name another file" in lost[2]
    assert "the key 'obs-1' is the secret of an HMAC, so a process that verifies by it could also sign" in half[2]
    assert file.read_text().startswith(before)
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


def test_a_platform_makes_a_file_for_each_process(wakeroll, tmp_path):
    """At its first start; a file that is lost later is made again of the one with all keys."""
    all_keys, observer, public = (tmp_path / f"{name}.toml" for name in ("all", "observer", "public"))
    options = ["--file", str(all_keys), "--observer", str(observer), "--public", str(public)]

    first = wakeroll("keys", "ensure", *options)
    found = read_keys(all_keys)
    public.unlink()
    second = wakeroll("keys", "ensure", *options)

    assert first[:2] == (
        0,
        f"made {all_keys} with a key of each role: operator, observer\n"
        f"made {observer} with the observer's keys\nmade {public} with the public keys\n",
    )
    assert second[1].count("exists; nothing has changed") == 2
    assert read_keys(observer).all == tuple(found.of_role("observer"))
    assert read_keys(public).all == tuple(public_half(key) for key in found.all)
    assert [file.stat().st_mode & 0o777 for file in (all_keys, observer, public)] == [0o600, 0o600, 0o644]


@pytest.mark.parametrize(
    ("command", "use"), [(["observe"], "sign"), (["run", "--only", "coordinate"], "verify")], ids=["observe", "run"]
)
def test_nobody_observes_or_decides_without_an_observers_key(wakeroll, file, tmp_path, command, use):
    """No tick would be signed, or none would count: a mistake that is better told at the start."""
    add_key(file, new_key("operator", "ops-1"))
    where = ["--bootstrap", "127.0.0.1:1", "--home", str(tmp_path), "--keys", str(file)]

    code, _, said = wakeroll(*command, *where)

    assert code == 2
    assert f"there is no key of the role observer to {use} with; keys found: ops-1" in said


def test_the_command_prints_an_entry_or_appends_it(wakeroll, file):
    code, printed, _ = wakeroll("keys", "new", "--role", "operator", "--id", "ops-1", "--algorithm", "hmac")
    assert code == 0
    file.write_text(printed)
    file.chmod(0o600)

    code, said, _ = wakeroll("keys", "new", "--role", "observer", "--id", "obs-1", "--file", str(file))

    keys = read_keys(file)
    assert code == 0
    assert said == f"added the key 'obs-1' of role observer to {file}\n"
    assert [(key.key_id, key.role) for key in keys.by_id.values()] == [("ops-1", "operator"), ("obs-1", "observer")]
    assert printed == entry_of(keys.by_id["ops-1"])
    assert keys.by_id["obs-1"].secret.hex() not in said
    assert [bool(key.public_key) for key in keys.by_id.values()] == [False, True]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--role", "king"], "--role: no role 'king'; there are: operator, observer"),
        (["--role", "operator", "--algorithm", "rsa"], "--algorithm is 'rsa'; it must be one of: ed25519, hmac"),
        (["--role", "operator"], "a private key is not printed; name the file to which it is appended by --file FILE"),
        (["--role", "operator", "--id", "a:b"], "the id of the key is 'a:b'; it must be 1 to 32 letters"),
        (["--role", "operator", "--id", "ops-1", "--file", "{file}"], "has a key 'ops-1'; choose another id"),
    ],
)
def test_a_wrong_key_is_refused_with_a_sentence(wakeroll, file, arguments, sentence):
    add_key(file, new_key("operator", "ops-1"))

    code, _, said = wakeroll("keys", "new", *(one.format(file=file) for one in arguments))

    assert code == 2
    assert sentence in said


def test_a_wrong_id_is_refused_before_a_secret_is_made():
    with pytest.raises(InvalidUsage, match="it must be 1 to 32 letters, digits, hyphens, underscores"):
        new_key("operator", "")


def test_a_platform_makes_its_keys_at_the_first_start_only(tmp_path, wakeroll):
    """Three containers start at once; the second one must not replace the keys with which the first one signs."""
    file = tmp_path / "keys.toml"

    first, second = (wakeroll("keys", "ensure", "--file", str(file)) for _ in range(2))
    found = read_keys(file)

    assert first[:2] == (0, f"made {file} with a key of each role: operator, observer\n")
    assert second[:2] == (0, f"{file} exists; nothing has changed\n")
    assert [(key.role, bool(key.public_key)) for key in found.by_id.values()] == [
        ("operator", True),
        ("observer", True),
    ]
    assert (file.stat().st_mode & 0o777, list(tmp_path.iterdir())) == (0o600, [file])


def test_where_keys_are_required_the_development_keys_are_refused(tmp_path):
    file = tmp_path / "keys.toml"
    create_keys(file, [new_key("operator"), new_key("observer")])

    with pytest.raises(InvalidKeys, match=r"no key file is named.*wakeroll keys ensure --file FILE"):
        load({"WAKEROLL_REQUIRE_KEYS": "true"}).read_keys()
    assert load({"WAKEROLL_REQUIRE_KEYS": "true", "WAKEROLL_KEYS": str(file)}).read_keys().by_id
