"""Where the controller lets itself be sent by those who ask for boosts."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from distributed_grid.decide.leases.hooks import check_hook, hook_place, private_head
from distributed_grid.errors import InvalidRequest
from distributed_grid.model.leases import WATCHED

NODES = {"gpu-master": "192.0.2.10", "gpu1": "192.0.2.11", "gpu6": "2001:db8::6", "named": "worker.example"}


@pytest.mark.parametrize(
    ("url", "address", "port", "path"),
    [
        ("http://127.0.0.1:9000/save", "127.0.0.1", 9000, "/save"),
        ("http://127.0.0.9/", "127.0.0.9", 80, "/"),
        ("http://localhost:9000?key=1", "127.0.0.1", 9000, "/?key=1"),
        ("http://[::1]:9000/a?b=c", "::1", 9000, "/a?b=c"),
        ("https://192.0.2.11/x", "192.0.2.11", 443, "/x"),
        ("http://[::ffff:192.0.2.11]:1/", "192.0.2.11", 1, "/"),
        ("http://[2001:db8::6]:1/", "2001:db8::6", 1, "/"),
        ("http://gpu1:9000/", "192.0.2.11", 9000, "/"),
        ("http://GPU1:9000/", "192.0.2.11", 9000, "/"),
        ("http://127.0.0.1:9000/a#part", "127.0.0.1", 9000, "/a"),
    ],
)
def test_loopback_and_nodes_are_called_by_their_address(url: str, address: str, port: int, path: str) -> None:
    place = hook_place(url, NODES)
    assert (place.address, place.port, place.path) == (address, port, path)
    assert place.is_tls == url.startswith("https")


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://169.254.169.254/latest/meta-data", "neither"),
        ("http://192.0.2.12/", "neither"),
        ("http://example.org/", "neither"),
        ("http://localhost.example.org/", "neither"),
        ("http://127.0.0.1.example.org/", "neither"),
        ("http://0.0.0.0/", "neither"),
        ("http://2130706433/", "neither"),  # 127.0.0.1, for those who look names up
        ("http://0177.0.0.1/", "neither"),
        ("http://[fe80::1%25eth0]/", "neither"),
        ("http://[::ffff:169.254.169.254]/", "neither"),
        ("http://127.0.0.1@example.org/", "user name"),
        ("http://me:secret@127.0.0.1/", "user name"),
        ("http://example.org\\@127.0.0.1/", "user name"),
        ("file:///etc/passwd", "only http"),
        ("ftp://127.0.0.1/", "only http"),
        ("127.0.0.1:9000", "only http"),
        ("", "only http"),
        ("http://", "no host"),
        ("http:///path", "no host"),
        ("http://127.0.0.1:0/", "no host and port"),
        ("http://127.0.0.1:99999/", "cannot be parsed"),
        ("http://[::1/", "cannot be parsed"),
        ("http://127.0.0.1/a b", "visible ASCII"),
        ("http://127.0.0.1/\r\nX-Grid: 1", "visible ASCII"),
        ("http://127.0.0.1/\u00e9", "visible ASCII"),
        ("http://127.0.0.1/" + "a" * 3000, "at most 2000"),
    ],
)
def test_nothing_else_is_called_and_it_is_told_why(url: str, why: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        hook_place(url, NODES)
    assert why in refused.value.because[0]
    assert "http://127.0.0.1:PORT/PATH" in (refused.value.try_next or "")


def test_a_refusal_does_not_repeat_the_path_which_may_be_a_secret() -> None:
    with pytest.raises(InvalidRequest) as refused:
        hook_place("http://example.org/s3cret", NODES)
    assert "s3cret" not in f"{refused.value.message} {refused.value.because} {refused.value.try_next}"


def test_a_watched_boost_has_no_url_to_check() -> None:
    assert check_hook(None, NODES) is None
    assert check_hook(WATCHED, {}) == WATCHED
    with pytest.raises(InvalidRequest):
        check_hook("watch", NODES)


def test_a_node_whose_address_is_unknown_cannot_be_named() -> None:
    with pytest.raises(InvalidRequest):
        hook_place("http://gpu1/", {"gpu1": ""})


@example("http://127.0.0.9:9000/save")
@given(st.text(max_size=60) | st.from_regex(r"https?://[a-z0-9.:@\[\]/\\%-]{0,40}", fullmatch=True))
def test_whatever_is_given_only_a_known_address_is_called(url: str) -> None:
    try:
        place = hook_place(url, NODES)
    except InvalidRequest:
        return
    assert place.address in NODES.values() or place.address == "::1" or place.address.startswith("127.")


# -- the head of a private Ray -----------------------------------------------------------------------------------

SHARED = "192.0.2.10:6379"


def head(address: str, *caller: str, lender: str = "gpu1", nodes: dict[str, str] = NODES, shared: str = SHARED) -> str:
    return private_head(address, lender=lender, nodes=nodes, caller=caller, shared_head=shared)


@pytest.mark.parametrize(
    ("address", "caller", "joined"),
    [
        ("192.0.2.11:6400", "198.51.100.7", "192.0.2.11:6400"),
        ("gpu1:6400", "198.51.100.7", "192.0.2.11:6400"),
        ("198.51.100.7:6379", "198.51.100.7", "198.51.100.7:6379"),
        ("[2001:db8::6]:6400", "198.51.100.7", "[2001:db8::6]:6400"),
        ("[::ffff:192.0.2.11]:6400", "198.51.100.7", "192.0.2.11:6400"),
        ("127.0.0.1:6400", "192.0.2.11", "127.0.0.1:6400"),
        ("named:6400", "198.51.100.7", "worker.example:6400"),
    ],
)
def test_a_private_head_is_on_a_node_or_where_its_caller_is(address: str, caller: str, joined: str) -> None:
    assert head(address, caller) == joined


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("203.0.113.9:6379", "neither on a node of this cluster nor on the caller's machine"),
        ("0.0.0.0:6400", "neither on a node"),
        ("169.254.169.254:80", "neither on a node"),
        ("evil.example:6379", "neither an address nor the name of a node"),
        ("127.0.0.1:6400", "on gpu1, that address is not your machine"),
        ("192.0.2.10:6379", "the head of this cluster itself"),
        ("gpu-master:6379", "the head of this cluster itself"),
        ("x; rm", "not HOST:PORT"),
        ("192.0.2.11:0", "not a port"),
        ("ray://192.0.2.11:1", "Ray client server"),
    ],
)
def test_no_other_address_can_be_a_private_head(address: str, why: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        head(address, "198.51.100.7")
    assert why in refused.value.because[0]


def test_on_one_machine_the_clusters_own_head_is_refused_by_each_of_its_addresses() -> None:
    nodes = {"head": "127.0.0.1", "gpu1": "127.0.0.1"}
    here = ("127.0.0.1", "198.51.100.7")
    for address in ("127.0.0.1:6379", "localhost:6379", "198.51.100.7:6379", "head:6379"):
        with pytest.raises(InvalidRequest, match="cannot be the head"):
            head(address, *here, nodes=nodes, shared="127.0.0.1:6379")
    assert head("127.0.0.1:6400", *here, nodes=nodes, shared="127.0.0.1:6379") == "127.0.0.1:6400"


@given(st.text(max_size=60) | st.from_regex(r"[a-z0-9.:@\[\]-]{0,30}(:[0-9]{1,5})?", fullmatch=True))
@example("gpu1:6400")
@example("2001:db8::6:6400")
def test_any_text_is_refused_or_leads_to_a_node_or_to_the_caller(text: str) -> None:
    try:
        found = head(text, "198.51.100.7")
    except InvalidRequest:
        return
    host, _, port = found.rpartition(":")
    assert host.strip("[]") in {*NODES.values(), "198.51.100.7"}
    assert 0 < int(port) < 65536
