"""The configuration as data: defaults, limits in exact units, round trip, digest, schema."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from property_examples import examples
from pydantic import ValidationError

from distributed_grid.config import GridConfig, NodeRole, SharingMode, SharingPolicy, json_schema, load_config
from distributed_grid.errors import ConfigInvalid
from distributed_grid.model.endings import OnGraceEnd
from distributed_grid.model.nodes import SharingLimits

REPOSITORY = Path(__file__).parents[2]

names = st.text(st.characters(categories=["Ll", "Nd"], include_characters="-._"), min_size=1, max_size=12)
fractions = st.floats(0, 1).map(lambda value: round(value, 3))
amounts = st.one_of(st.integers(0, 4096), st.integers(0, 40960).map(lambda tenths: tenths / 10))
# Long enough never to be a key that grid knows.
extras = st.dictionaries(
    names.map("x-{}".format),
    st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(-9, 9), st.text(max_size=5)),
        lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(names, inner, max_size=3)),
        max_leaves=5,
    ),
    max_size=3,
)


def some_of(fields: dict[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=fields)


def with_extras(settings: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    return st.builds(lambda known, unknown: unknown | known, settings, extras)


@st.composite
def thresholds(draw: st.DrawFn) -> dict[str, Any]:
    found: dict[str, Any] = {"excess_threshold": draw(fractions)}
    for kind in draw(st.sets(st.sampled_from(["cpu", "memory", "gpu"]))):
        low, high = sorted(draw(st.lists(fractions, min_size=2, max_size=2, unique=True)))
        found |= {f"{kind}_pressure_low": low, f"{kind}_pressure_high": high}
    return found


sharing = with_extras(
    some_of(
        {
            "enabled": st.booleans(),
            "mode": st.sampled_from([str(mode) for mode in SharingMode]),
            "policy": st.sampled_from([str(policy) for policy in SharingPolicy]),
            "rebalance_interval_seconds": st.floats(0.1, 1e6),
            "thresholds": thresholds(),
            "delivery": st.sampled_from(["transfer", "reserve", "auto", None]),
            "gpu_companions": some_of({"cpu": amounts, "memory_gb": amounts}),
            "on_grace_end": st.sampled_from([str(end) for end in OnGraceEnd]),
        }
    )
)
node_settings = with_extras(
    some_of(
        {
            "host": names,
            "cpu_count": st.integers(0, 512),
            "memory_gb": amounts,
            "tags": st.lists(names, max_size=3),
            "resources": st.dictionaries(names.map("custom-{}".format), amounts, max_size=2),
            "resource_sharing": some_of({"can_share": st.booleans(), "max_share_cpu": amounts}),
        }
    )
)
nodes = st.dictionaries(names, node_settings, max_size=4).map(
    lambda found: [{**s, "name": n} for n, s in found.items()]
)
configs = with_extras(some_of({"name": names, "embedded": st.booleans(), "nodes": nodes, "resource_sharing": sharing}))


def reversed_keys(value: Any) -> Any:
    """The same data with every mapping written the other way round."""
    if isinstance(value, dict):
        return {key: reversed_keys(value[key]) for key in reversed(value)}
    return [reversed_keys(item) for item in value] if isinstance(value, list) else value


def respelled(data: dict[str, Any]) -> dict[str, Any]:
    """The same settings in every other spelling."""
    top = dict(data)
    if "name" in top:
        top["cluster"] = {"name": top.pop("name")}
    if "resource_sharing" in top:
        inner = dict(top.pop("resource_sharing"))
        if "rebalance_interval_seconds" in inner:
            inner["rebalance_interval"] = inner.pop("rebalance_interval_seconds")
        if "thresholds" in inner:
            flat = dict(inner.pop("thresholds"))
            inner["thresholds"] = {"excess_threshold": flat.pop("excess_threshold")}
            nested: dict[str, Any] = {}
            for key, value in flat.items():
                kind, _, level = key.split("_")
                nested.setdefault(kind, {})[level] = value
            inner["pressure_thresholds"] = nested
        top["execution"] = {"resource_sharing": inner}
    return top


@settings(max_examples=examples(50), deadline=None)
@given(configs)
def test_a_configuration_survives_the_way_to_another_process(data: dict[str, Any]) -> None:
    config = GridConfig.from_dict(data)

    arrived = GridConfig.from_dict(json.loads(json.dumps(config.to_dict())))

    assert arrived == config
    assert arrived.digest() == config.digest()


@settings(max_examples=examples(50), deadline=None)
@given(configs)
def test_the_digest_depends_neither_on_order_nor_on_spelling(data: dict[str, Any]) -> None:
    digest = GridConfig.from_dict(data).digest()

    assert GridConfig.from_dict(reversed_keys(data)).digest() == digest
    assert GridConfig.from_dict(respelled(data)).digest() == digest


@settings(max_examples=examples(50), deadline=None)
@given(configs, st.floats(1e-3, 1e6))
def test_the_digest_sees_every_change(data: dict[str, Any], seconds: float) -> None:
    config = GridConfig.from_dict(data)
    changed = config.to_dict()
    changed["resource_sharing"]["grace_seconds"] = seconds
    changed["x-note"] = "changed"

    assert GridConfig.from_dict(changed).digest() != config.digest()


def test_the_digest_does_not_see_comments_and_ways_to_write_a_number(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("nodes:\n- {name: a, cpu_count: 4, x: 2}\n")
    (tmp_path / "b.yaml").write_text("# hello\nname: grid\nnodes:\n- cpu_count: 4.0 # four\n  x: 2.0\n  name: a\n")

    a, b = (load_config(tmp_path / name).config for name in ("a.yaml", "b.yaml"))

    assert a.digest() == b.digest()


def test_a_length_of_time_may_be_written_as_in_a_command(tmp_path: Path) -> None:
    (tmp_path / "numbers.yaml").write_text(
        "resource_sharing: {grace_seconds: 1800, min_hold_seconds: 0, expiry_warning_seconds: 90, "
        "max_grace_seconds: 5400, rebalance_interval: 30, monitoring_interval_seconds: 0.5}\n"
    )
    (tmp_path / "words.yaml").write_text(
        "resource_sharing: {grace_seconds: 30m, min_hold_seconds: 0s, expiry_warning_seconds: '90', "
        "max_grace_seconds: 1h30m, rebalance_interval: 30 s, monitoring_interval_seconds: '0.5'}\n"
    )

    numbers, words = (load_config(tmp_path / name).config for name in ("numbers.yaml", "words.yaml"))

    assert words.to_dict() == numbers.to_dict() and words.digest() == numbers.digest()
    assert isinstance(words.resource_sharing.grace_seconds, int)
    VALIDATOR.validate({"resource_sharing": {"grace_seconds": "1h30m", "rebalance_interval": "30 s"}})


def test_the_order_of_nodes_counts_only_where_it_chooses_the_head() -> None:
    a, b, master = {"name": "a"}, {"name": "b"}, {"name": "m", "role": "master"}

    def digest(*found: dict[str, Any]) -> str:
        return GridConfig.from_dict({"nodes": found}).digest()

    assert digest(a, b, master) == digest(b, master, a)
    assert digest(a, b) != digest(b, a)


def test_the_head_is_the_master_else_the_first_node() -> None:
    def head(*found: dict[str, Any]) -> str | None:
        node = GridConfig.from_dict({"nodes": found}).head
        return node.name if node else None

    assert head({"name": "a"}, {"name": "b", "role": "master"}) == "b"
    assert head({"name": "a"}, {"name": "b"}) == "a"
    assert head() is None


def test_limits_are_in_exact_units() -> None:
    config = GridConfig.from_dict(
        {
            "nodes": [
                {
                    "name": "a",
                    "resource_sharing": {
                        "max_share_cpu": 0.1,
                        "max_share_memory_gb": 1.5,
                        "max_share_gpu": 0,
                        "priority": 2,
                    },
                },
                {"name": "b", "resource_sharing": {"can_share": False}},
            ]
        }
    )

    assert config.limits_for("a") == SharingLimits(
        max_share_cpu=1000, max_share_memory=3 * 2**29, max_share_gpu=0, priority=2.0
    )
    assert config.limits_for("b") == SharingLimits(can_share=False)
    assert config.limits_for("nobody") == SharingLimits()
    assert config.node("nobody") is None


def test_defaults_are_the_promised_ones() -> None:
    config = GridConfig.from_dict({"nodes": [{"name": "a"}]})
    shared, (node,) = config.resource_sharing, config.nodes

    assert (config.name, config.embedded, shared.enabled) == ("grid", False, False)
    assert (shared.mode, shared.policy) == (SharingMode.DYNAMIC_BALANCING, SharingPolicy.BALANCED)
    assert (shared.rebalance_interval_seconds, shared.monitoring_interval_seconds) == (30, 10)
    assert (shared.delivery, shared.fractional_gpus) == (None, False)
    assert (shared.gpu_companions.cpu, shared.gpu_companions.memory_gb) == (1, 0)
    assert (shared.grace_seconds, shared.on_grace_end, shared.expiry_warning_seconds) == (
        30,
        OnGraceEnd.HOLD,
        60,
    )
    assert shared.thresholds.model_dump() == {
        f"{kind}_pressure_{level}": value for kind in ("cpu", "memory", "gpu") for level, value in HIGH_LOW
    } | {"excess_threshold": 0.2}
    assert (node.role, node.port, node.tags, node.resources) == (NodeRole.WORKER, 22, (), {})
    assert config.limits_for("a") == SharingLimits()


HIGH_LOW = (("high", 0.8), ("low", 0.3))


def test_without_a_file_all_nodes_share() -> None:
    config = GridConfig.discovered()

    assert (config.name, config.nodes, config.resource_sharing.enabled) == ("grid", (), True)


def test_a_configuration_cannot_be_changed() -> None:
    with pytest.raises(ValidationError):
        GridConfig().name = "other"  # type: ignore[misc]


@pytest.mark.parametrize(
    "key", ["digest", "head", "node", "copy", "model_fields", "_private", "__class__", "execution"]
)
def test_extras_may_have_any_name(key: str) -> None:
    config = GridConfig.from_dict({key: {"kept": 1}})

    assert config.to_dict()[key] == {"kept": 1}
    assert GridConfig.from_dict(config.to_dict()).digest() == config.digest()
    assert GridConfig.from_dict({key: {"kept": 2}}).digest() != config.digest()


def test_wrong_data_from_python_is_explained_by_path() -> None:
    with pytest.raises(ConfigInvalid) as caught:
        GridConfig.from_dict({"cluster": {"name": 3}, "nodes": [{"name": "a"}, {"name": "a", "cpu_count": -1}]})

    assert caught.value.because == (
        'cluster.name: must be text, not 3; quotes make it text: "3"',
        "nodes[1].name: the name 'a' is taken by nodes[0]; every node needs its own",
        "nodes[1].cpu_count: must be zero or more, not -1",
    )


def test_every_setting_in_the_schema_is_described() -> None:
    def check(part: dict[str, Any], path: str) -> None:
        for name, setting in part.get("properties", {}).items():
            assert setting.get("description"), f"{path}.{name}"
            check(setting, f"{path}.{name}")

    schema = json_schema()
    check(schema, "")
    for name, part in schema["$defs"].items():
        check(part, name)


def test_every_setting_is_documented() -> None:
    schema, text = json_schema(), (REPOSITORY / "docs/configuration.md").read_text()

    for part in (schema, *schema["$defs"].values()):
        for name in part.get("properties", {}):
            assert re.search(rf"`[\w.]*\b{name}\b", text), name


@pytest.mark.parametrize("file", ["my-cluster-enhanced.yaml", "real-machines.yaml"])
def test_the_examples_fit_the_schema_and_load_without_a_warning(file: str) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    loaded = load_config(REPOSITORY / "config" / file)

    jsonschema.validate(respelled(loaded.config.to_dict()), json_schema())
    assert loaded.warnings == ()


@settings(max_examples=examples(50), deadline=None)
@given(configs)
def test_the_schema_accepts_both_spellings(data: dict[str, Any]) -> None:
    VALIDATOR.validate(data)
    VALIDATOR.validate(respelled(data))


@pytest.mark.parametrize(
    "data",
    [
        {"cluster": {"name": 3}},
        {"execution": {"resource_sharing": {"rebalance_interval": 0}}},
        {"resource_sharing": {"pressure_thresholds": {"cpu": {"high": 2}}}},
        {"resource_sharing": {"mode": "sometimes"}},
        {"resource_sharing": {"grace_seconds": "soon"}},
        {"nodes": [{"host": "nameless"}]},
    ],
)
def test_the_schema_refuses_what_the_loader_refuses(data: dict[str, Any]) -> None:
    assert not VALIDATOR.is_valid(data)
    with pytest.raises(ConfigInvalid):
        GridConfig.from_dict(data)


class _Validator:
    """Built once, as compiling is slow; skips the test where jsonschema is missing."""

    def __init__(self) -> None:
        self._made: Any = None

    def __getattr__(self, name: str) -> Any:
        if self._made is None:
            self._made = pytest.importorskip("jsonschema").Draft202012Validator(json_schema())
        return getattr(self._made, name)


VALIDATOR = _Validator()
