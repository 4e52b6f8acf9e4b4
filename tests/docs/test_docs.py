"""The pages agree with the code: links, commands, options, codes, keys and tables."""

import ast
import builtins
import importlib
import json
import re
import shlex
import symtable
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import click
import pytest
from every_metric import every_metric
from pydantic import BaseModel

from distributed_grid import errors
from distributed_grid.cli.app import app
from distributed_grid.config import GridConfig, load_config
from distributed_grid.config.roles_file import POOL_KEYS, ROLE_KEYS, load_workload
from distributed_grid.controller.api import make_app
from distributed_grid.decide.diagnosis import diagnose
from distributed_grid.decide.offload.secrets import ALLOWED, ALLOWED_BEGINNINGS
from distributed_grid.decide.policies import POLICIES, PolicyNumbers
from distributed_grid.decide.scheduler import strategies
from distributed_grid.model.checkup_facts import ControllerFacts, Facts, HomeFacts, MachineFacts
from distributed_grid.model.findings import CHECKS, Code
from distributed_grid.model.lease_changes import LEGAL
from distributed_grid.model.leases import LeaseState
from distributed_grid.model.offload import ObstacleCode, OffloadState
from distributed_grid.model.principals import Scope
from distributed_grid.model.refusals import RefusalCode
from distributed_grid.model.roles.environment import DOCUMENTED_ALLOW
from distributed_grid.model.roles.profiles import PROFILES, NexRLRole, documented_fields
from distributed_grid.model.roles.scaling import SCALING_KEYS, Scaling
from distributed_grid.model.roles.spec import FailurePolicy
from distributed_grid.model.scheduling import SchedulingStrategy
from distributed_grid.model.teams import Teams
from distributed_grid.wire.nodes import DemandStatus, OneNode
from distributed_grid.wire.scheduling import TaskRequest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "distributed_grid"
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


# -- reading pages -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w*)$")


def blocks(page: Path, *languages: str) -> list[Block]:
    found: list[Block] = []
    opened: tuple[int, str, str] | None = None
    inside: list[str] = []
    for number, line in enumerate(page.read_text().splitlines(), start=1):
        fence = FENCE.match(line)
        if fence and opened is None:
            opened, inside = (number, fence["language"], fence["indent"]), []
        elif fence and opened is not None:
            found.append(Block(page, opened[0] + 1, opened[1], "\n".join(inside)))
            opened = None
        elif opened is not None:
            inside.append(line.removeprefix(opened[2]))
    assert opened is None, f"{page.name}:{opened and opened[0]}: a block is not closed"
    return [block for block in found if not languages or block.language in languages]


def prose(page: Path) -> str:
    """The page without its blocks."""
    return re.sub(r"^ *```\w*\n.*?^ *```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def inline_code(page: Path) -> list[str]:
    return [code.replace("\\|", "|") for code in re.findall(r"`([^`\n]+)`", prose(page))]


def tables(page: Path) -> Iterator[list[dict[str, str]]]:
    """Every table as rows by heading."""
    for table in re.findall(r"^\|.*\n\|[ |:-]+\|\n(?:\|.*\n)*", prose(page), flags=re.MULTILINE):
        heading, _, *rows = [
            [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in table.splitlines()
        ]
        yield [dict(zip(heading, row, strict=True)) for row in rows]


def table(page: str, *headings: str) -> list[dict[str, str]]:
    """The one table of a page with these headings, in this order, in front."""
    found = [rows for rows in tables(ROOT / page) if tuple(rows[0])[: len(headings)] == headings]
    assert len(found) == 1, f"{page} has {len(found)} tables that begin with {headings}"
    return found[0]


def codes_in(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def anchors(page: Path) -> set[str]:
    """The headings of a page, as links name them."""
    headings = re.findall(r"^#+ (.*)$", prose(page), flags=re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", heading.replace("`", "").lower()) for heading in headings)
    return {heading.replace(" ", "-") for heading in plain}


# -- links ---------------------------------------------------------------------------------------------------


@every_page
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name} links to {link}"
        if anchor:
            assert anchor in anchors(target), f"{page.name} links to {link}, which is no heading there"


def test_the_readme_leads_to_every_page() -> None:
    linked = {(ROOT / link.partition("#")[0]).resolve() for link in re.findall(r"\]\(([^)\s:]+)\)", prose(PAGES[0]))}

    assert {page.name for page in PAGES[1:]} <= {path.name for path in linked}


def test_the_table_of_pages_has_each_page_once() -> None:
    named = [link for row in table("README.md", "Page") for link in re.findall(r"\]\(([^)]+)\)", row["Page"])]

    assert sorted(named) == sorted(str(page.relative_to(ROOT)) for page in PAGES[1:])


# -- commands ------------------------------------------------------------------------------------------------


def typed(block: Block) -> Iterator[tuple[int, str]]:
    """The lines of a block that a person types."""
    for number, line in enumerate(block.text.splitlines(), start=block.line):
        if block.language == "bash" and line.strip():
            yield number, line
        elif block.language == "console" and line.startswith("$ "):
            yield number, line.removeprefix("$ ")


def grid_commands(line: str) -> Iterator[list[str]]:
    """The arguments of every `grid` in a shell line."""
    filled_in = re.sub(r"\$\([a-z. ]+\)", "1", re.sub(r"<[a-z-]+>", "PLACEHOLDER", line))
    words = shlex.shlex(filled_in, posix=True, punctuation_chars=True)
    words.whitespace_split = True
    part: list[str] = []
    for word in [*words, ";"]:
        if set(word) <= set("();<>|&"):
            arguments = [w for i, w in enumerate(part) if "=" not in w or "grid" in part[:i]]
            if "grid" in arguments[:3] and arguments[0] in ("grid", "poetry", "uv"):
                yield arguments[arguments.index("grid") + 1 :]
            part = []
        else:
            part.append(word)


def resolve(arguments: list[str]) -> tuple[click.Command, click.Context, list[str]]:
    """The command that is meant, and what is left for it."""
    command, context, left = app, click.Context(app, info_name="grid"), list(arguments)
    while isinstance(command, click.Group) and left and not left[0].startswith("-"):
        name = left.pop(0)
        found = command.get_command(context, name)
        assert found is not None, f"there is no command {name!r} in {context.command_path}"
        command, context = found, click.Context(found, info_name=name, parent=context)
    return command, context, left


def check_options(command: click.Command, context: click.Context, words: list[str]) -> None:
    """Every option exists; some commands would take an unknown one for an argument."""
    known = {option for known in command.get_params(context) for option in (*known.opts, *known.secondary_opts)}
    own = words[: words.index("--")] if "--" in words else words
    unknown = [word for word in own if word.startswith("--") and word.partition("=")[0] not in known]
    assert not unknown, f"{context.command_path} has no {unknown}"


@every_page
def test_every_command_in_a_block_can_be_typed_like_that(page: Path) -> None:
    for block in blocks(page, "bash", "console"):
        for number, line in typed(block):
            for arguments in grid_commands(line):
                where = f"{page.name}:{number}: grid {' '.join(arguments)}"
                try:
                    command, context, left = resolve(arguments)
                    check_options(command, context, left)
                    command.make_context(command.name, left, parent=context.parent)
                except click.exceptions.Exit:
                    continue  # --help and --version
                except (click.UsageError, AssertionError) as error:
                    pytest.fail(f"{where}: {error}")


@every_page
def test_every_command_in_a_sentence_exists(page: Path) -> None:
    for code in inline_code(page):
        words = code.split()
        if words[0] == "grid" and len(words) > 1:
            command, context, left = resolve(words[1:])
            check_options(command, context, [word.partition("=")[0] for word in left])


@pytest.mark.parametrize("file", sorted((ROOT / "deploy").glob("*.yaml")), ids=lambda file: file.name)
def test_every_command_that_a_runbook_names_exists(file: Path) -> None:
    text = re.sub(r"\{\{.*?\}\}", "PLACEHOLDER", " ".join(file.read_text().split()))

    for code in re.findall(r"`grid ([^`]+)`", text):
        command, context, left = resolve(code.split())
        check_options(command, context, left)


def test_the_table_of_all_commands_is_complete() -> None:
    listed = {
        " ".join([*codes_in(row["Command"])[0].split()[1:-1], code.split()[-1]])
        for row in table("README.md", "Command", "What it is for")
        if row["Command"].startswith("`grid")
        for code in codes_in(row["Command"])
    }

    assert listed == set(all_commands(app, click.Context(app), ""))


def all_commands(group: click.Group, context: click.Context, prefix: str) -> Iterator[str]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            if command.invoke_without_command:
                yield f"{prefix}{name}"
            yield from all_commands(command, context, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}"


def test_the_options_of_a_request_are_all_explained() -> None:
    command, context, _ = resolve(["boost", "request"])
    options = {p.opts[-1] for p in command.get_params(context) if isinstance(p, click.Option)}
    explained = {codes_in(row["Option"])[0].split()[0] for row in table("docs/boosts.md", "Option", "Default")}

    assert explained == options - {"--help"}


@every_page
def test_every_make_target_exists(page: Path) -> None:
    makefile = (ROOT / "Makefile").read_text()
    said = [code for code in inline_code(page) if "=" not in code]
    typed_lines = [line for block in blocks(page, "bash", "console") for _, line in typed(block)]

    for line in (*said, *typed_lines):
        if target := re.match(r"make (\w[\w-]*)", line):
            assert re.search(rf"^{target[1]}:", makefile, flags=re.MULTILINE), f"{page.name}: {line}"


# -- programs and data ---------------------------------------------------------------------------------------


@every_page
def test_python_can_be_read_and_imports_what_is_there(page: Path) -> None:
    for block in blocks(page, "python"):
        for node in ast.walk(ast.parse(block.text, str(block))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("distributed_grid"):
                module = importlib.import_module(node.module or "")
                missing = [name.name for name in node.names if not hasattr(module, name.name)]
                assert not missing, f"{block}: {node.module} has no {missing}"


def unbound(text: str) -> set[str]:
    """The names that a program uses and neither imports nor defines."""
    program = symtable.symtable(text, "shown", "exec")
    bound = {one.get_name() for one in program.get_symbols() if one.is_assigned() or one.is_imported()}
    scopes = [program]
    used: set[str] = set()
    for scope in scopes:
        scopes += scope.get_children()
        used |= {one.get_name() for one in scope.get_symbols() if one.is_global() and one.is_referenced()}
    return used - bound - {*dir(builtins)}


def test_a_program_of_the_readme_imports_or_defines_every_name_that_it_uses() -> None:
    assert unbound("def f(x): return [y for y in x if z]\nprint(f(g))") == {"g", "z"}
    for block in blocks(ROOT / "README.md", "python"):
        assert unbound(block.text) == set(), str(block)


@every_page
def test_json_is_json(page: Path) -> None:
    for block in blocks(page, "json"):
        json.loads(block.text)


@every_page
def test_configurations_load_without_a_warning(page: Path, tmp_path: Path) -> None:
    for block in blocks(page, "yaml"):
        file = tmp_path / "shown.yaml"
        file.write_text(block.text)
        load = load_workload if re.search(r"^roles:", block.text, flags=re.MULTILINE) else load_config
        assert load(file).warnings == (), str(block)


def settings(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Every key of the configuration, with dots."""
    for name, field in model.model_fields.items():
        yield f"{prefix}{name}"
        for nested in _models_in(field.annotation):
            yield from settings(nested, f"{prefix}{name}.")


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models_in(part)


@every_page
def test_every_configuration_key_exists(page: Path) -> None:
    known = {*settings(GridConfig)} | {key.removeprefix("nodes.") for key in settings(GridConfig)}

    for code in inline_code(page):
        if key := re.fullmatch(r"((?:resource_sharing|nodes)(?:\.\w+)+)(?:: .+)?", code):
            assert key[1] in known, f"{page.name} mentions {code}"


# -- tables that the code has, too ---------------------------------------------------------------------------

ERRORS = {error.code: error for error in vars(errors).values() if isinstance(error, type) and hasattr(error, "code")}


def test_the_exit_codes() -> None:
    rows = table("docs/boosts.md", "Exit code", "Meaning", "Error codes")
    reported = {code: int(row["Exit code"]) for row in rows for code in codes_in(row["Error codes"])}

    assert reported == {code: error.exit_code for code, error in ERRORS.items()}


def test_every_error_is_explained() -> None:
    rows = table("docs/troubleshooting.md", "Code", "Exit")
    reported = {codes_in(row["Code"])[0]: int(row["Exit"]) for row in rows}

    assert reported == {code: error.exit_code for code, error in ERRORS.items()}


def test_the_http_statuses() -> None:
    rows = table("docs/api.md", "HTTP", "Codes")
    reported = {code: int(row["HTTP"]) for row in rows for code in codes_in(row["Codes"])}

    assert reported == {code: error.http_status for code, error in ERRORS.items()}


@every_page
def test_no_other_error_code_is_mentioned(page: Path) -> None:
    json_codes = [code for block in blocks(page, "json") for code in re.findall(r'"code": "(\w+)"', block.text)]

    assert set(json_codes) <= set(ERRORS)


def test_the_scopes() -> None:
    assert [codes_in(row["Scope"])[0] for row in table("docs/security.md", "Scope", "Allows")] == [*map(str, Scope)]


def test_the_states_of_a_lease() -> None:
    rows = table("docs/architecture.md", "State", "May become")
    reported = {codes_in(row["State"])[0]: set(codes_in(row["May become"])) for row in rows}

    assert reported == {str(state): {str(next_one) for next_one in LEGAL[state]} for state in LeaseState}
    assert {codes_in(row["State"])[0] for row in table("docs/boosts.md", "State", "Meaning")} == {
        state.shown for state in LeaseState
    }


def test_the_reasons_of_refusals() -> None:
    rows = table("docs/boosts.md", "Word", "Why this node does not lend")

    assert {codes_in(row["Word"])[0] for row in rows} == {str(code) for code in RefusalCode}


def test_what_keeps_a_process_from_moving() -> None:
    rows = table("docs/offloading.md", "Word", "Why it stays")
    states = table("docs/offloading.md", "State", "Meaning")

    assert [codes_in(row["Word"])[0] for row in rows] == [str(code) for code in ObstacleCode]
    assert [codes_in(row["State"])[0] for row in states] == list(dict.fromkeys(state.shown for state in OffloadState))


def test_the_options_of_a_move_are_all_explained() -> None:
    command, context, _ = resolve(["offload", "execute"])
    options = {max(p.opts, key=len) for p in command.get_params(context) if isinstance(p, click.Option)}
    explained = {code for row in table("docs/offloading.md", "Option", "Default") for code in codes_in(row["Option"])}

    assert explained == options - {"--help", "--json", "--config"}


def test_what_is_copied_of_an_environment_is_explained() -> None:
    reported = {code.rstrip("*") for code in inline_code(ROOT / "docs/offloading.md")}

    assert {*ALLOWED_BEGINNINGS} <= reported
    in_other_words = {name for name in ALLOWED if name.startswith("PYTHON") or "THREADS" in name}
    assert reported >= ALLOWED - in_other_words


def test_the_numbers_of_the_policies() -> None:
    rows = table("docs/sharing.md", "Policy", "Lender keeps")

    def yes(value: bool) -> str:
        return "yes" if value else "no"

    def keeps(numbers: PolicyNumbers) -> str:
        if numbers.foresees:
            return "what its own work is expected to need before the lease ends"
        if numbers.headroom_of_idle == 0.5:
            return "half of what is idle"
        if numbers.headroom_of_base is None:
            return "`excess_threshold` (20 %) of all it has"
        return f"{numbers.headroom_of_base:.0%} of all it has".replace("%", " %")

    assert {codes_in(row["Policy"])[0]: list(row.values())[1:] for row in rows} == {
        str(policy): [
            keeps(numbers),
            yes(numbers.acts_by_itself),
            str(numbers.high_rounds),
            str(numbers.low_rounds),
            yes(numbers.foresees),
            yes(numbers.preempts),
            f"{numbers.min_hold_s:g} s",
            str(numbers.changes_per_round),
        ]
        for policy, numbers in POLICIES.items()
    }


def _openapi() -> dict[str, Any]:
    engine: Any = SimpleNamespace(service=None, config=GridConfig(), parts=SimpleNamespace(journal=None, teams=Teams()))
    app = make_app(engine, None, dict, lambda: None)  # type: ignore[arg-type, return-value]
    return app.openapi()


def test_the_endpoints() -> None:
    spec = _openapi()
    rows = {codes_in(row["Call"])[0]: row["Needs"] for row in table("docs/api.md", "Call", "Needs", "What it does")}
    needs = {
        f"{verb.upper()} {path}": "no token" if not call["security"] else call["security"][0]["token"] or "any token"
        for path, verbs in spec["paths"].items()
        for verb, call in verbs.items()
    }

    assert {call: codes_in(needed) or needed for call, needed in rows.items()} == needs
    body = spec["components"]["schemas"]["BoostRequest"]["properties"]
    assert [codes_in(row["Field"])[0] for row in table("docs/api.md", "Field", "Default")] == list(body)


def test_the_strategies_of_the_scheduler() -> None:
    rows = table("docs/scheduling.md", "Strategy", "Prefers")

    assert {codes_in(row["Strategy"])[0]: row["Prefers"] for row in rows} == {
        str(name): strategy.summary[0].lower() + strategy.summary[1:].rstrip(".")
        for name, strategy in strategies().items()
        if name in set(SchedulingStrategy)
    }


def test_the_fields_of_a_task() -> None:
    rows = table("docs/api.md", "Name", "If left out")

    assert {field for row in rows for field in codes_in(row["Name"])} == set(TaskRequest.__annotations__)


def test_the_keys_of_a_role_and_of_a_pool() -> None:
    reported = [key for row in table("docs/roles.md", "Key", "If left out") for key in codes_in(row["Key"])]

    assert reported == [*ROLE_KEYS]
    assert {*POOL_KEYS[1:]} <= {*inline_code(ROOT / "docs/roles.md")}


def test_the_profiles_of_roles() -> None:
    rows = table("docs/roles.md", "Profile", "CPUs", "GPUs", "Calls at a time")
    reported = {codes_in(row["Profile"])[0]: [int(cell) for cell in list(row.values())[1:]] for row in rows}

    assert reported == {name: [one["cpus"], one["gpus"], one["max_concurrency"]] for name, one in PROFILES.items()}


def test_the_roles_of_the_documented_api() -> None:
    alone, together = table("docs/roles.md", "Role", "CPUs", "Calls at a time")

    assert {*codes_in(alone["Role"])} == {role.name for role in NexRLRole}
    for row, colocated in ((alone, False), (together, True)):
        found = documented_fields(colocated=colocated)
        assert (row["CPUs"], row["Calls at a time"]) == (str(found["cpus"]), str(found["max_concurrency"]))


def test_what_a_scaling_says() -> None:
    rows = table("docs/roles.md", "Scaling", "If left out", "Meaning")
    reported = {key: row["If left out"].strip("`") for row in rows for key in codes_in(row["Scaling"])}

    assert [*reported] == [*SCALING_KEYS]
    plain = Scaling("queue", up_at=2, down_at=1)
    said = {key: json.loads(value) for key, value in reported.items() if value != "required"}
    assert said == {key: getattr(plain, key) for key in said}


def test_the_failure_policies_of_roles() -> None:
    reported = [codes_in(row["Policy"])[0] for row in table("docs/roles.md", "Policy", "What is done")]

    assert reported == [*FailurePolicy]


def test_the_documented_environment() -> None:
    assert {*DOCUMENTED_ALLOW} <= {*inline_code(ROOT / "docs/roles.md")}


def test_the_events_of_the_audit_log() -> None:
    source = "".join(path.read_text() for path in sorted(SOURCE.rglob("*.py")))
    reported = {event for row in table("docs/boosts.md", "Event", "When") for event in codes_in(row["Event"])}

    assert reported == set(re.findall(r'(?:journal\.note|_audit\.append)\(\s*"(\w+)"', source))


def test_the_metrics() -> None:
    rows = table("docs/monitoring.md", "Metric", "Type", "Labels")
    reported = {codes_in(row["Metric"])[0]: (row["Type"], set(codes_in(row["Labels"]))) for row in rows}

    assert reported == {
        f"{metric.name}{'_total' if metric.type == 'counter' else ''}": (
            metric.type,
            {label for sample in metric.samples for label in sample.labels} - {"le"},
        )
        for metric in every_metric()
    }


def test_the_fields_of_nodes_and_of_what_waits() -> None:
    page = ROOT / "docs/monitoring.md"
    reported = {field for rows in tables(page) for row in rows for field in codes_in(row.get("Field", ""))}

    assert set(DemandStatus.__annotations__) <= reported <= {*OneNode.__annotations__, *DemandStatus.__annotations__}


def test_the_findings_of_the_auditor() -> None:
    rows = table("docs/operations.md", "Finding", "What it means")

    assert {codes_in(row["Finding"])[0] for row in rows} == {str(code) for code in Code if code not in CHECKS}


def test_the_checks_of_the_doctor() -> None:
    nowhere = Facts(MachineFacts("3.11", "python", "2.60"), HomeFacts("home", False), ControllerFacts(), None)
    rows = table("docs/troubleshooting.md", "Check", "It is fine if")
    reported = {check for row in rows for check in codes_in(row["Check"])}

    assert reported == {str(finding.code) for finding in diagnose(nowhere)}


@pytest.mark.parametrize("page", ["docs/architecture.md", "docs/ray.md"])
def test_the_architecture_names_files_that_exist(page: str) -> None:
    paths = [code for code in inline_code(ROOT / page) if re.fullmatch(r"[\w/]+(\.py|/)", code)]

    assert paths
    for path in paths:
        assert (SOURCE / path).exists() or (ROOT / path).exists(), path


def test_the_architecture_has_the_layers_that_are_enforced() -> None:
    layers = re.search(r"^layers = \[(.*?)\]", (ROOT / "pyproject.toml").read_text(), flags=re.MULTILINE | re.DOTALL)
    assert layers is not None
    reported = [code for row in table("docs/architecture.md", "Layer", "What it is") for code in codes_in(row["Layer"])]

    assert reported == re.findall(r"\w+", layers[1])


@pytest.mark.parametrize("picture", sorted((ROOT / "docs/images").iterdir()), ids=lambda picture: picture.name)
def test_a_picture_loads_nothing_from_other_hosts(picture: Path) -> None:
    assert not re.findall(r"""(?:url\(|href=)["']?https?://[^"')]+""", picture.read_text())


# The glossary has the field's word for each: report, message, reclaim, repair, pending return, none.
RETIRED = {
    "told",
    "asked_back",
    "ask_back",
    "wanted_back",
    "mend",
    "mending",
    "upkeep",
    "homecoming",
    "belongings",
    "takeover",
    "errands",
    "attendant",
    "nobody",
    "somebody",
    "whoever",
}


def test_the_code_uses_the_words_of_the_glossary() -> None:
    found = {
        (str(path.relative_to(SOURCE)), word)
        for path in SOURCE.rglob("*.py")
        for word in re.findall(r"[a-z_]+", path.read_text().lower())
        if word.strip("_") in RETIRED
    }
    assert found == {("store/lease_codec.py", "wanted_back")}, "the boost file has always had that key"
