"""The networks of search spaces as a target sees them."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property

from hwnas.core.errors import ConfigError
from hwnas.core.progress import Progress
from hwnas.hardware import backends as descriptions
from hwnas.hardware.backends import base
from hwnas.hardware.backends.base import Backend
from hwnas.hardware.costs.measured_cost import dtype_of, fused_graph
from hwnas.hardware.latency_tables.latency_table import TableConfig
from hwnas.hardware.suggested_commands import changed_options, shipped_options, suggested_command
from hwnas.hardware.target import Target
from hwnas.models.families import annotations, early_exits
from hwnas.models.families.base import Family
from hwnas.models.graph import Graph, Signature
from hwnas.models.spaces import Genotype, SearchSpace, Space
from hwnas.training import supernet
from hwnas.training.data import ImageData
from hwnas.training.options import DatasetConfig
from hwnas.workflows.config import ProfileConfig, SearchConfig


@dataclass(frozen=True)
class Networks:
    """The networks of a space, or of several, on a target, for one task.

    Raises:
        CompileError: no network of a space can be exported for the target.
        ConfigError: a space has choices that the target does not support: of weight compression,
            number format, batch size, threads, or early exits.
    """

    target: Target
    space: Space
    families: Mapping[str, Family]  #: by the name of the space
    signature: Signature  #: input shape and outputs of the task

    def __post_init__(self) -> None:
        for member in self.space.members:
            self._check_packing(member)
            self._check_precision(member)
            self._check_running(member)
            self._check_exits(member)
            base.check_space(member, self.lower, self.target, self.backend)

    def _check_packing(self, space: SearchSpace) -> None:
        names, target = annotations.weight_option_names(space), self.target
        if names and not descriptions.get(target.runtime).packs_weights:
            able = [
                description.name
                for description in descriptions.known()
                if description.packs_weights
            ]
            raise ConfigError(
                f"Search space '{space.name}' has the choice '{names[0]}', which has no benefit on "
                f"target '{target.name}' (target.runtime={target.runtime}). Remove the choice, or "
                f"use a target with target.runtime={' or '.join(able)}."
            )

        zeros = annotations.weight_option_names(space, annotations.SPARSITY)
        if zeros and not target.weight_sparsity:
            raise ConfigError(
                f"Search space '{space.name}' has the choice '{zeros[0]}', but target "
                f"'{target.name}' has no benefit from zero weights. Remove the choice, or set "
                "target.weight_sparsity=true."
            )

    def _check_precision(self, space: SearchSpace) -> None:
        chosen, target = annotations.precision_options(space), self.target
        able = descriptions.get(target.runtime).precisions
        if chosen and not {*chosen, target.dtype} <= {*able}:
            others = [
                f"target.runtime={d.name}"
                for d in descriptions.known()
                if d.measured and {*chosen} <= {*d.precisions}
            ]
            remedy = f"set target.dtype={able[0]}" if {*chosen} <= {*able} else "remove the choice"
            raise ConfigError(
                f"Search space '{space.name}' has the choice '{annotations.KEY}', but target "
                f"'{target.name}' (target.runtime={target.runtime}) runs all networks in "
                f"{target.dtype}. Allowed: {remedy}, or use a target with {' or '.join(others)}."
            )
        for dtype in chosen:
            try:
                base.backend_of(replace(target, dtype=dtype))
            except ConfigError as error:
                raise ConfigError(
                    f"Search space '{space.name}' has {annotations.KEY}={dtype}, which does not "
                    f"run here. Remove {dtype} from the space, or use another target. {error}"
                ) from None

    def _check_running(self, space: SearchSpace) -> None:
        for key in annotations.BATCH_KEYS:
            able = [
                description.name for description in descriptions.known() if key in description.runs
            ]
            if annotations.run_options(space, key) and self.target.runtime not in able:
                raise ConfigError(
                    f"Search space '{space.name}' has the choice '{key}', but target "
                    f"'{self.target.name}' (target.runtime={self.target.runtime}) has one {key} "
                    f"for all networks. Remove '{key}' from the file of the space, or set "
                    f"target.{annotations.OF_TARGETS[key]}=[] if that defines it, or use a "
                    f"target with target.runtime={' or '.join(able)}."
                )

    def _check_exits(self, space: SearchSpace) -> None:
        target = self.target
        runs = descriptions.get(target.runtime).exits and target.engine == target.runtime
        if early_exits.exit_names(space) and not runs:
            able = [description.name for description in descriptions.known() if description.exits]
            raise ConfigError(
                f"Search space '{space.name}' has early exits, which target '{target.name}' "
                f"({target.engine}) does not support. Use a search space without exits, or a "
                f"target with target.runtime={' or '.join(able)}."
            )

        options = annotations.run_options(space, annotations.BATCH)
        if early_exits.exit_names(space) and max([target.batch, *options]) > 1:
            remedy = f"Set target.batch=1, not {target.batch}"
            if options:
                remedy = "Remove 'batch' from the file of the space, or set target.batches=[]"
            raise ConfigError(
                f"Search space '{space.name}' has early exits, which need single images. {remedy}."
            )

    @cached_property
    def backend(self) -> Backend:
        """The backend that compiles the networks for the target."""
        return base.backend_of(self.target)

    def lower(self, genotype: Genotype) -> Graph:
        """Return the graph of a genotype, with operators not fused."""
        family, member = self._family(genotype), self.space.member(genotype)
        return annotations.lower(family, member, genotype, self.signature)

    def dtype(self, genotype: Genotype) -> str:
        """Return the number format of a genotype's network, such as ``int8``."""
        return dtype_of(self.lower(genotype), self.target)

    def target_of(self, genotype: Genotype) -> Target:
        """Return the target with the number format, batch size and threads of one network."""
        lowered, target = self.lower(genotype), self.target
        return replace(
            target,
            dtype=dtype_of(lowered, target),
            batch=lowered.batch or target.batch,
            batches=[],
            threads=lowered.threads or target.threads,
            thread_counts=[],
        )

    def in_float(self, genotype: Genotype) -> Genotype | None:
        """Return the genotype of the same network in float32.

        ``None`` if the genotype does not choose int8, or the space has no float32.
        """
        return annotations.float_genotype(self.space.member(genotype), genotype)

    def resolution(self, genotype: Genotype) -> int:
        """Return the height and width of a genotype's input, in pixels."""
        return self._family(genotype).resolution(self.space.member(genotype), genotype)

    def _family(self, genotype: Genotype) -> Family:
        return self.families[genotype.space]

    def fused_graph(self, genotype: Genotype) -> Graph:
        """Return the graph of a genotype with operators fused as on the target."""
        return fused_graph(self.lower(genotype), self.target)

    def exported_graph(self, genotype: Genotype) -> Graph:
        """Return the fused graph of a genotype, after checking that it can be exported.

        Raises:
            CompileError: the target does not support an operator.
        """
        lowered = self.lower(genotype)
        self.backend.check(lowered)
        return fused_graph(lowered, self.target)


def read_networks(
    config: SearchConfig | ProfileConfig, progress: Progress, data: ImageData | None = None
) -> tuple[Networks, ImageData]:
    """Return the networks of the search spaces on the target, and the data.

    Args:
        config: Configuration of the command.
        progress: Is notified of loading.
        data: The data, if another process has read them; ``None``: they are read here.

    Raises:
        HwnasError: a package of the target's backend is not installed, the data or a space cannot
            be read, or a space does not fit the target; see ``Networks``.
    """
    base.backend_of(config.target)  # before the data are read
    space, by_name, data = supernet.read_space_and_data(
        config.spaces, config.dataset, progress, config.target.running, data
    )
    return Networks(config.target, space, by_name, data.signature), data


DEFAULT_DATA = "digits"  #: data set of searches and profiles that name none
#: Data set options that determine which images are read, and thus input shape and classes.
_SOURCE = ("hub_id", "path", "image_column", "label_column", "test_split")


def profile_command(config: SearchConfig | ProfileConfig, *words: str) -> str:
    """Return the command line ``hwnas profile`` for the same target, spaces and data.

    ``words`` are more arguments at its end.
    """
    return next_command("profile", config, *words)


def next_command(verb: str, config: SearchConfig | ProfileConfig, *words: str) -> str:
    """Return the command line ``hwnas VERB`` for the same target, spaces and data.

    ``words`` are more arguments at its end.
    """
    spaces, rpc = config.spaces, config.rpc
    searched = spaces[0] if len(spaces) == 1 else f"[{','.join(spaces)}]"
    options = [f"search_space={searched}", *data_options(config.dataset)]
    if config.table.dir != TableConfig().dir:
        options.append(f"table.dir={config.table.dir}")
    if rpc.tracker:
        options += [f"rpc.tracker={rpc.tracker}", f"rpc.key={rpc.key}"]
    return suggested_command(verb, config.target, *options, *words)


def data_options(dataset: DatasetConfig) -> list[str]:
    """Return the arguments that select data set, files and task; defaults are left out."""
    usual = asdict(DatasetConfig(dataset.name)) | shipped_options("dataset", dataset.name).get(
        "dataset", {}
    )
    known = {name: getattr(dataset, name) for name in _SOURCE}
    task = [f"task={dataset.task}"] if dataset.task != usual["task"] else []
    name = [f"dataset={dataset.name}"] if dataset.name != DEFAULT_DATA else []
    return [*name, *task, *changed_options("dataset", known, usual)]
