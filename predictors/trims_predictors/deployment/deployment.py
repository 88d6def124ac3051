"""Values of a worker pool: its settings, deployments, answers, and the message that has a predictor load a model."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from trims.core.errors import CallerError
from trims.core.place import TierKind
from trims.manifests.serving import NO_SIGNATURE
from trims_predictors.deployment.cpu_shares import share
from trims_predictors.frameworks import HANDLER
from trims_predictors.sandbox.sandbox import OWN_PROCESS, Isolation
from trims_predictors.tensors import describe

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from trims.manifests.serving import Signature, TensorType
    from trims.manifests.steps import Step
    from trims.wire.frames import Message
    from trims_predictors.children.launcher import Environment
    from trims_predictors.deployment.key import DeploymentKey
    from trims_predictors.tensors import Tensor


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a worker pool.

    Attributes:
        runtime_dir: Folder of the daemon's sockets.
        predictors: Processes that run models at once, spares not counted.
        queue: Requests that may wait for one model.
        spares: Predictors that each template has ready.
        keep_alive_s: Seconds an idle predictor stays, for models that do not say it; None: until its slot is needed.
        load_deadline_s: Seconds a predictor may take to load its model.
        run_deadline_s: Seconds that one run may take, for models that do not say it.
        queue_deadline_s: Seconds that a request waits for a predictor, if it does not say it.
        template_keep_alive_s: Seconds that a template stays without use; None: until its memory is needed.
        most_template_bytes: Memory of all templates and spares together; None for no bound.
        isolation: How far predictors are kept apart.
        plain_output: What predictors print is passed on as it is, without their names and a bound.
        of_tenants: Predictors at once of a tenant, by its name; of others as many as of the operator.
        hot_spares: Predictors, of all models together, that have loaded a model in steady demand ahead of need.
        device_spares: Processes on each device that wait there with a context, and without weights.
        end_abandoned: Whether a run is ended that no client waits for any more, and that would take longer than a new
            predictor.
        most_predictor_bytes: Memory of its own that a predictor may take for its model; None for no limit.
        most_instances: Predictors at once of a model whose manifest states no `instances`, while requests wait for
            longer than one takes to start; None for four for each processor.
        most_further_bytes: Memory of its own that all of these beyond the first of each model may have together; None
            for a quarter of all.
        learned: File that keeps what templates have learned to import, for the next endpoint; None for none.
    """

    runtime_dir: str
    predictors: int = 16
    queue: int = 128
    spares: int = 1
    keep_alive_s: float | None = 300.0
    load_deadline_s: float = 600.0
    run_deadline_s: float = 60.0
    queue_deadline_s: float = 600.0
    template_keep_alive_s: float | None = 600.0
    most_template_bytes: int | None = None
    isolation: Isolation = OWN_PROCESS
    plain_output: bool = False
    most_predictor_bytes: int | None = None
    end_abandoned: bool = True
    hot_spares: int = 2
    device_spares: int = 1
    of_tenants: Mapping[str, int] = field(default_factory=dict)
    most_instances: int | None = None
    most_further_bytes: int | None = None
    learned: Path | None = None


@dataclass(frozen=True, slots=True)
class Deployment:
    """Description of how the predictors of one model are made and used.

    Attributes:
        key: Distinguishes its predictors from others: another one whenever the manifest has changed.
        call: What the predictor is made from.
        how: What `call` names: a class, an entry point or a function, as `making` has it.
        origin: Folder of its manifest, from which the class may come; or empty.
        inputs: What requests must bring; empty if the manifest does not say it.
        preprocess: Steps before the predictor, in its process.
        postprocess: Steps after it.
        preload: Modules for the template.
        place: Where to have the weights; None for what the manifest says.
        home: The place that its manifest states; empty if it states none.
        instances: Predictors at once.
        grows: Whether its manifest states no `instances`: it has further ones while requests wait for long.
        threads: Threads of each predictor, when it is alone.
        shares_processors: Beside runs of others it has fewer threads: its manifest states no number.
        batch: Rows of one run; 0: no batches.
        batch_delay_s: How long a request waits for others.
        priority_levels: How many levels of priority requests may name; 0: none.
        default_priority: The level of a request that names none.
        keep_alive_s: Seconds that an idle predictor stays; None: what the settings say.
        run_deadline_s: Seconds that a run may take; None: what the settings say.
        hot: Predictors that have loaded it ahead of need; None for by demand.
        found: Inputs and outputs that the daemon knows of the model: those of its graph, or of a run. Only for a
            predictor of ours, and only those that no steps change; else it is empty.
        is_plain: The predictor is one of ours, and no steps are around it: what it takes depends on the image alone.
        opened_as: What its predictors open: this version and no other; empty for the model's name.
        versions: All that the model has, in the order in which they were registered.
        variables: Environment variables that its predictors get beyond those of every predictor.
        runs_own_code: Loading it may run code of a user: its class, function or handler, or what its artifact names.
    """

    key: DeploymentKey
    model: str
    version: str
    call: str
    environment: Environment
    how: str = "class"
    origin: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    attributes: Mapping[str, Any] = field(default_factory=dict)
    inputs: tuple[TensorType, ...] = ()
    outputs: tuple[TensorType, ...] = ()
    preprocess: tuple[Step, ...] = ()
    postprocess: tuple[Step, ...] = ()
    preload: tuple[str, ...] = ()
    place: str | None = None
    home: str = ""
    instances: int = 1
    grows: bool = False
    threads: int = 1
    shares_processors: bool = False
    batch: int = 0
    batch_delay_s: float = 0.0
    priority_levels: int = 0
    default_priority: int = 0
    keep_alive_s: float | None = None
    run_deadline_s: float | None = None
    hot: int | None = None
    found: Signature = NO_SIGNATURE
    is_plain: bool = False
    opened_as: str = ""
    versions: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)
    runs_own_code: bool = True

    @property
    def is_loaded_ahead(self) -> bool:
        """Return whether it may be loaded ahead of a request: not with a class of the user's, which may do anything."""
        return self.is_plain or self.how == HANDLER

    def for_tenant(self, tenant: str) -> Deployment:
        """Return the deployment of this model for a tenant, whose predictors, templates and socket are its own."""
        environment = replace(self.environment, tenant=tenant)
        return replace(self, key=replace(self.key, tenant=tenant), environment=environment)

    def at(self, place: str) -> Deployment:
        """Return the deployment of this model at a place that requests name, with predictors of its own.

        Hot spares are for the manifest's place: here there are none.
        """
        return replace(self, key=replace(self.key, place=place), place=place, hot=0)

    def level_of(self, priority: int) -> int:
        """The level of a request that names this priority, 0 for none. Raises CallerError for one it has not."""
        if not priority:
            return self.default_priority
        if priority > self.priority_levels:
            has = f"has the levels 1 to {self.priority_levels}" if self.priority_levels else "has no priority levels"
            raise CallerError(
                f"the parameter 'priority' is {priority}; {self.model!r} {has}: `priority_levels` in the `predictor` "
                "of its manifest"
            )
        return priority

    def threads_of(self, runs: int) -> int:
        """Threads of each run while so many go on."""
        return share(self.threads, runs) if self.shares_processors else self.threads

    @property
    def versions_there(self) -> tuple[str, ...]:
        """Return all versions of the model; its own from a daemon that has one of each."""
        return self.versions or (self.version,)

    @property
    def subject(self) -> str:
        """Name of model and tenant, for people."""
        return self.key.subject


def is_device(place: str) -> bool:
    """Return whether a place is in the memory of a device; not so for an empty one, or for `auto`."""
    return place.startswith(TierKind.GPU.value)


def load_message(deployment: Deployment, memory_bytes: int | None = None) -> Message:
    """Return the message that has a worker load a model, with the most memory that it may take; see `worker`."""
    return {
        "op": "load", "model": deployment.model, "version": deployment.version,
        "opens": deployment.opened_as or deployment.model, "call": deployment.call, "how": deployment.how,
        "origin": deployment.origin, "options": dict(deployment.options),
        "attributes": dict(deployment.attributes), "threads": deployment.threads, "place": deployment.place,
        "deadline_s": None, "inputs": describe(deployment.inputs), "outputs": describe(deployment.outputs),
        "preprocess": [asdict(each) for each in deployment.preprocess],
        "postprocess": [asdict(each) for each in deployment.postprocess], "memory_bytes": memory_bytes,
        "batch": deployment.batch, "variables": dict(deployment.variables),
    }  # fmt: skip


def warm_message(
    deployment: Deployment, image: Sequence[str], given: object, memory_bytes: int | None = None
) -> Message:
    """Return the message that has a worker warm up on the device where an image lies; see `worker`.

    Args:
        deployment: Deployment of a model with this image.
        given: Inputs to rehearse, as a predictor reported them; None for none.
    """
    return {
        **load_message(deployment, memory_bytes),
        "op": "warm",
        "image": list(image),
        "builds": deployment.is_loaded_ahead,
        "given": given,
    }


@dataclass(frozen=True, slots=True)
class Answer:
    """Result of a request.

    Attributes:
        cold: Whether it was answered by a predictor that was started after the request had come.
        how: What its predictor was before: `running`, `hot`, `spare`, `forked` or `spawned`.
        warm: Whether the weights were there already when the predictor opened them.
        batch: Requests that were answered in the same run.
        rows: Rows of the request, 1 for models without batches.
        stages: Seconds of each stage: `queue_s` until a predictor had it, of these for a cold one `process_s`,
            `connect_s`, `open_s`, `import_s`, `load_s` and the rest as `unattributed_s`; then `input_s`,
            `preprocess_s` and `postprocess_s` around `predict_s` if the model has such steps, `output_s`, and `run_s`
            for the whole run as the endpoint sees it.
    """

    outputs: list[Tensor]
    cold: bool
    how: str
    place: str
    warm: bool
    batch: int
    stages: Mapping[str, float]
    rows: int = 1
    run_rows: int = 1
