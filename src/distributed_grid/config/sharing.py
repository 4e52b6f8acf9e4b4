"""Settings of resource sharing for the whole cluster."""

from enum import StrEnum
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from distributed_grid.config.values import (
    Cpus,
    EmptyList,
    EmptySection,
    Flag,
    Fraction,
    Gigabytes,
    Gpus,
    Interval,
    Text,
    Wait,
    Weight,
    one_of,
    units,
    wrong,
)
from distributed_grid.model.endings import OnGraceEnd
from distributed_grid.model.leases import DeliveryChoice
from distributed_grid.model.policies import AllocationPriority, SharingMode, SharingPolicy
from distributed_grid.model.resources import CPU, GPU, MEMORY, ResourceVector
from distributed_grid.model.teams import Team
from distributed_grid.model.validators import Number


class Settings(BaseModel):
    """Frozen; keys that grid does not know are kept as they are, so that a file can serve other tools too."""

    model_config = ConfigDict(frozen=True, extra="allow")


class GpuInUse(StrEnum):
    REFUSE = "refuse"
    WARN = "warn"


class ForecasterChoice(StrEnum):
    BUILT_IN = "built-in"
    RIVER = "river"


class IdleAction(StrEnum):
    OFF = "off"
    WARN = "warn"
    RECLAIM = "reclaim"


PRESSURES: Final = ("cpu", "memory", "gpu")


class Thresholds(Settings):
    """The loads at which a node comes under pressure, and at which the pressure ends."""

    model_config = ConfigDict(validate_default=True)

    # Each `high` stands before its `low`: the check of `low` looks back at it.
    cpu_pressure_high: Fraction = Field(
        default=0.8, description="CPU load (0 to 1) from which a node is under pressure."
    )
    cpu_pressure_low: Fraction = Field(default=0.3, description="CPU load (0 to 1) at which the pressure ends.")
    memory_pressure_high: Fraction = Field(
        default=0.8, description="Memory load (0 to 1) from which a node is under pressure."
    )
    memory_pressure_low: Fraction = Field(default=0.3, description="Memory load (0 to 1) at which the pressure ends.")
    gpu_pressure_high: Fraction = Field(
        default=0.8, description="GPU load (0 to 1) from which a node is under pressure."
    )
    gpu_pressure_low: Fraction = Field(default=0.3, description="GPU load (0 to 1) at which the pressure ends.")
    excess_threshold: Fraction = Field(
        default=0.2, description="The part of a node (0 to 1) that the policy balanced keeps free when it lends."
    )

    @field_validator(*(f"{kind}_pressure_low" for kind in PRESSURES))
    @classmethod
    def _low_is_below_high(cls, low: Number, info: ValidationInfo) -> Number:
        high_name = str(info.field_name).replace("_low", "_high")
        high = info.data.get(high_name)
        if high is not None and low >= high:
            # The person may have written only `high`; the message then points there.
            raise wrong(f"the low threshold ({low}) must be below the high one ({high})", beside=high_name)
        return low


class GpuCompanions(Settings):
    """What each reserved GPU brings along from its node."""

    cpu: Cpus = Field(default=1, description="CPUs per reserved GPU.")
    memory_gb: Gigabytes = Field(default=0, description="GB of memory per reserved GPU.")


class TeamAmounts(Settings):
    """Amounts of what nodes lend; what is left out is not limited, or not guaranteed."""

    cpu: Cpus | None = Field(default=None, description="CPUs.")
    memory_gb: Gigabytes | None = Field(default=None, description="GB of memory.")
    gpu: Gpus | None = Field(default=None, description="GPUs.")

    def units(self) -> dict[str, int]:
        given = {CPU: self.cpu, MEMORY: self.memory_gb, GPU: self.gpu}
        return {kind: units(kind, amount) for kind, amount in given.items() if amount is not None}


class TeamConfig(Settings):
    """A team, and its part of what the nodes lend."""

    name: Text = Field(description="The name that tokens use: grid token create NAME --team TEAM.")
    guaranteed: Annotated[TeamAmounts, EmptySection] = Field(
        default=TeamAmounts(),
        description="The team's own part: what other teams use of it is reclaimed when the team requests it.",
    )
    borrowing_limit: Annotated[TeamAmounts, EmptySection] = Field(
        default=TeamAmounts(), description="The most the team may have above its guarantee. Default: whatever is free."
    )
    lending_limit: Annotated[TeamAmounts, EmptySection] = Field(
        default=TeamAmounts(), description="The most that other teams may use of its part. Default: all of it."
    )
    weight: Weight = Field(default=1, description="Its fair share of the queue, relative to the other teams' weights.")
    max_priority: Annotated[AllocationPriority, one_of(AllocationPriority)] | None = Field(
        default=None,
        description="The highest priority that its tokens may request. Default: normal, or the token's own limit.",
    )

    def team(self) -> Team:
        return Team(
            self.name,
            ResourceVector(self.guaranteed.units()),
            self.borrowing_limit.units(),
            self.lending_limit.units(),
            float(self.weight),
            self.max_priority,
        )


class SharingConfig(Settings):
    """How nodes lend to each other."""

    enabled: Flag = Field(default=False, description="Whether nodes lend to each other at all.")
    mode: Annotated[SharingMode, one_of(SharingMode)] = Field(
        default=SharingMode.DYNAMIC_BALANCING,
        description="offload_only moves work, share_and_offload also lends resources on request, "
        "dynamic_balancing also rebalances without a request.",
    )
    policy: Annotated[SharingPolicy, one_of(SharingPolicy)] = Field(
        default=SharingPolicy.BALANCED, description="How readily capacity moves."
    )
    rebalance_interval_seconds: Interval = Field(default=30, description="Seconds between two rounds of rebalancing.")
    monitoring_interval_seconds: Interval = Field(
        default=10, description="Seconds between two measurements of each node."
    )
    forecaster: Annotated[ForecasterChoice, one_of(ForecasterChoice)] = Field(
        default=ForecasterChoice.BUILT_IN,
        description="What forecasts each node's load: built-in, or river (needs the extra forecast).",
    )
    thresholds: Annotated[Thresholds, EmptySection] = Field(
        default=Thresholds(), description="When a node is under pressure."
    )
    delivery: Annotated[DeliveryChoice, one_of(DeliveryChoice)] | None = Field(
        default=None,
        description="How a boost is delivered if the request does not say. Default: transfer for cpu, memory "
        "and custom resources, reserve for GPUs.",
    )
    fractional_gpus: Flag = Field(default=False, description="Whether parts of a GPU may be lent.")
    gpu_in_use: Annotated[GpuInUse, one_of(GpuInUse)] = Field(
        default=GpuInUse.REFUSE,
        description="What to do with a GPU that programs outside Ray use: refuse does not lend it, warn lends it "
        "with a warning.",
    )
    gpu_companions: Annotated[GpuCompanions, EmptySection] = Field(
        default=GpuCompanions(), description="CPUs and memory that come with each reserved GPU."
    )
    grace_seconds: Wait = Field(
        default=30, description="Seconds that work on a borrowed resource gets to finish when the boost ends."
    )
    max_grace_seconds: Wait = Field(
        default=600, description="The longest grace period that a request or a release may ask for, in seconds."
    )
    on_grace_end: Annotated[OnGraceEnd, one_of(OnGraceEnd)] = Field(
        default=OnGraceEnd.HOLD,
        description=f"After the grace period: {', '.join(f'{each} {each.summary}' for each in OnGraceEnd)}.",
    )
    min_hold_seconds: Wait | None = Field(
        default=None,
        description="The age in seconds before which no boost is preempted, returned or moved. Default: by policy.",
    )
    idle_after: Interval = Field(
        default=900, description="How long work must not use a lease before the lease counts as idle, in seconds."
    )
    idle_action: Annotated[IdleAction, one_of(IdleAction)] = Field(
        default=IdleAction.WARN,
        description="What happens to an idle lease: off does not look for any, warn reports it, reclaim also takes it "
        "back when a request waits for its capacity.",
    )
    teams: Annotated[tuple[TeamConfig, ...], EmptyList] = Field(
        default=(), description="The teams that share the cluster. Default: all users are in one team."
    )
    expiry_warning_seconds: Wait = Field(
        default=60, description="Seconds before the end of a boost at which grid warns of it."
    )

    @field_validator("teams")
    @classmethod
    def _teams_have_own_names(cls, teams: tuple[TeamConfig, ...]) -> tuple[TeamConfig, ...]:
        names = [team.name for team in teams]
        if twice := [name for name in names if names.count(name) > 1]:
            raise wrong(f"duplicate team name {twice[0]!r}; every team needs its own")
        return teams
