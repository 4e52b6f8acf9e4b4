"""The auditor on boosts with several lenders: sound ones give no finding, and each lender is compared by itself."""

import pytest
from builders import ask
from whole_grid import WholeGrid, at_home

from distributed_grid.engine.auditor import Report
from distributed_grid.leases.reclaim import cordon
from distributed_grid.model.findings import Code
from distributed_grid.model.leases import Lease

SETTLED_S = 31.0  # after the start, a node that is absent may still come

pytestmark = pytest.mark.filterwarnings("ignore")


def boost_of(lab: WholeGrid, amount: float, kind: str = "cpu") -> Lease:
    """For b, from a and c."""
    boost = lab.run(lab.service.request(ask("b", kind, amount, max_sources=3)))
    assert boost.sources == ("a", "c")
    return boost


def audited(lab: WholeGrid) -> Report:
    return lab.run(lab.engine.auditor.audit())


@pytest.mark.parametrize(("amount", "kind"), [(6, "cpu"), (2, "gpu")])
def test_a_boost_of_several_lenders_is_sound(lab: WholeGrid, amount: float, kind: str) -> None:
    boost = boost_of(lab, amount, kind)
    assert audited(lab).findings == ()
    lab.crash()
    assert audited(lab).findings == ()
    lab.run(lab.service.release(boost.id))
    lab.wait(1.0)
    assert audited(lab).findings == ()
    at_home(lab)


def test_a_boost_that_gave_back_a_part_is_sound(lab: WholeGrid) -> None:
    boost = boost_of(lab, 6)
    lab.run(lab.service.release(boost.id, units=3 * 10_000))
    lab.wait(1.0)
    assert audited(lab).findings == ()
    lab.run(cordon(lab.parts, "c"))
    lab.wait(3.0)
    assert audited(lab).findings == ()


@pytest.mark.parametrize(("amount", "kind"), [(6, "cpu"), (2, "gpu")])
def test_a_boost_that_lost_a_lender_is_sound(lab: WholeGrid, amount: float, kind: str) -> None:
    boost_of(lab, amount, kind)
    lab.wait(SETTLED_S)
    lab.cluster.kill_node("c")
    lab.wait(5.0)
    assert audited(lab).findings == ()
    lab.cluster.return_node("c")
    lab.wait(5.0)
    assert audited(lab).findings == ()


def test_each_lender_is_compared_with_its_own_part(lab: WholeGrid) -> None:
    boost_of(lab, 6)
    lab.wait(5.0)
    lab.cluster.tamper("c", CPU=3)
    found = lab.run(lab.engine.auditor.repair())
    assert [(one.node, one.code) for one in found.repaired] == [("c", Code.DRIFTED_TOTAL)]
    assert found.repaired[0].detail.startswith("it has 3 CPUs and should have 2 CPUs")
    assert found.findings == ()
