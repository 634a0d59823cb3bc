import pytest

from hwnas.models.graph import (
    ACTIVATIONS,
    INPUT,
    Graph,
    Node,
    OpSpec,
    distinct_ops,
    fuse,
    n_macs,
    n_params,
)

IMAGE = (16, 8, 8)
CONV = OpSpec("conv2d+bn", IMAGE, IMAGE, 3)
LINEAR = OpSpec("linear", IMAGE, IMAGE)
ADD = OpSpec("add", IMAGE, IMAGE)


def _node(name: str, op: OpSpec, *inputs: str) -> Node:
    return Node(name, op, inputs)


def _kinds(*nodes: Node) -> dict[str, str]:
    return {node.name: node.op.kind for node in fuse(Graph.of(nodes), "float32")}


@pytest.mark.parametrize("op", [CONV, LINEAR])
@pytest.mark.parametrize("activation", ["", "+relu", "+gelu"])
def test_sum_is_fused_into_layer_of_last_term(op: OpSpec, activation: str) -> None:
    add = OpSpec(f"add{activation}", IMAGE, IMAGE)
    fused = fuse(
        Graph.of(
            (
                _node("first", CONV, INPUT),
                _node("second", op, "first"),
                _node("sum", add, "first", "second"),
                _node("last", CONV, "sum"),
            )
        ),
        "float32",
    )
    assert [node.name for node in fused] == ["first", "second", "last"]
    assert [node.inputs for node in fused] == [(INPUT,), ("first", "first"), ("second",)]
    assert fused[1].op.kind == f"{op.kind}+add{activation}"
    assert fused[1].op.activation == activation.removeprefix("+")
    assert fused[1].op.n_macs == op.n_macs


def test_sum_with_input_image_is_fused() -> None:
    nodes = _node("conv", CONV, INPUT), _node("sum", ADD, INPUT, "conv")
    (fused,) = fuse(Graph.of(nodes), "float32")
    assert fused.inputs == (INPUT, INPUT)


def test_sum_with_later_term_is_not_fused() -> None:
    nodes = (
        _node("early", CONV, INPUT),
        _node("late", CONV, INPUT),
        _node("sum", ADD, "late", "early"),
    )
    assert [*_kinds(*nodes)] == ["early", "late", "sum"]
    assert fuse(Graph.of(nodes), "float32")[-1].inputs == ("late", "early")


@pytest.mark.parametrize("reader", [("term", "other"), ("term", "term")])
def test_sum_of_term_with_two_readers_is_not_fused(reader: tuple[str, str]) -> None:
    nodes = (
        _node("other", CONV, INPUT),
        _node("term", CONV, "other"),
        _node("sum", ADD, "other", "term"),
        _node("again", ADD, *reader),
    )
    assert "sum" in _kinds(*nodes)
    assert "sum" not in _kinds(*nodes[:3])


def test_sum_of_a_term_with_itself_is_not_fused() -> None:
    assert "sum" in _kinds(_node("term", CONV, INPUT), _node("sum", ADD, "term", "term"))


@pytest.mark.parametrize("kind", ["conv2d+bn+relu", "conv2d+bn+add", "max_pool2d", "mul", "add"])
def test_sum_is_not_fused_into_unsuitable_operator(kind: str) -> None:
    n_inputs = 2 if kind in ("conv2d+bn+add", "mul", "add") else 1
    nodes = (
        _node("other", CONV, INPUT),
        _node("term", OpSpec(kind, IMAGE, IMAGE, 3), *["other"] * n_inputs),
        _node("sum", ADD, "other", "term"),
    )
    assert [*_kinds(*nodes)] == ["other", "term", "sum"]


def test_chain_of_residual_sums_is_fused() -> None:
    nodes = [_node("c0", CONV, INPUT)]
    last = "c0"
    for i in range(1, 4):
        nodes += [_node(f"c{i}", CONV, last), _node(f"sum{i}", ADD, last, f"c{i}")]
        last = f"sum{i}"
    fused = fuse(Graph.of(nodes), "float32")
    assert [node.name for node in fused] == ["c0", "c1", "c2", "c3"]
    assert [node.inputs for node in fused[1:]] == [("c0", "c0"), ("c1", "c1"), ("c2", "c2")]


def test_fusion_sets_only_dtype_and_batch() -> None:
    nodes = _node("conv", CONV, INPUT), _node("linear", LINEAR, "conv")
    fused = fuse(Graph.of(nodes), "float32", batch=3)
    assert {(node.op.dtype, node.op.batch) for node in fused} == {("float32", 3)}
    assert fuse(fused, "int8", batch=1).nodes == nodes
    assert n_macs(fused) == n_macs(Graph.of(nodes))
    assert n_params(fused) == n_params(Graph.of(nodes))


@pytest.mark.parametrize(
    ("kernel", "stride", "padding"),
    [(1, 1, 0), (3, 1, 1), (5, 1, 2), (7, 2, 3), (1, 2, 0), (2, 2, 0), (4, 4, 0), (16, 16, 0)],
)
def test_padding(kernel: int, stride: int, padding: int) -> None:
    assert OpSpec("conv2d", IMAGE, IMAGE, kernel, stride).padding == padding


@pytest.mark.parametrize("name", ["", *ACTIVATIONS])
@pytest.mark.parametrize("before", ["conv2d+bn", "linear+add", "mul"])
def test_activation(name: str, before: str) -> None:
    op = OpSpec(f"{before}+{name}" if name else before, IMAGE, IMAGE)
    assert op.activation == name
    assert op.base == before.partition("+")[0]


def test_macs_and_parameters_match_hand_computation() -> None:
    conv = OpSpec("conv2d+bn+relu", (3, 8, 8), (16, 4, 4), kernel=3, stride=2)
    assert (conv.n_macs, conv.n_params) == (4 * 4 * 16 * 3 * 9, 16 * 3 * 9 + 16)
    depthwise = OpSpec("conv2d", IMAGE, IMAGE, kernel=5, groups=16)
    assert (depthwise.n_macs, depthwise.n_params) == (64 * 16 * 25, 16 * 25 + 16)
    tokens = OpSpec("linear", (12, 7, 1), (20, 7, 1))
    assert (tokens.n_macs, tokens.n_params) == (7 * 12 * 20, 12 * 20 + 20)
    # Scores and the sum of values: each tokens x tokens x channels, for any number of heads.
    for heads in (1, 3):
        attention = OpSpec("attention", (36, 7, 2), (12, 7, 2), groups=heads)
        assert (attention.n_macs, attention.n_params) == (2 * 14 * 14 * 12, 0)
    assert OpSpec("layernorm", IMAGE, IMAGE).n_params == 32
    for kind in ("add", "mul", "mean", "max_pool2d", "layernorm"):
        assert OpSpec(kind, IMAGE, IMAGE).n_macs == 0


def test_distinct_operators_keep_their_order() -> None:
    first = _node("a", CONV, INPUT), _node("b", LINEAR, "a"), _node("c", CONV, "b")
    second = _node("x", ADD, INPUT, INPUT), _node("y", LINEAR, "x")
    assert distinct_ops([Graph.of(first), Graph.of(second)]) == (CONV, LINEAR, ADD)
    assert distinct_ops([]) == ()
