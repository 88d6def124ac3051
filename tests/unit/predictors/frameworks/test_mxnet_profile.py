"""MXNet's profile: a recorded one, whose operators are measured twice, and others that are damaged."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from kineto_traces import RECORDED
from trims_predictors.frameworks.mxnet_profile import Node, nodes_of, profile_of
from trims_predictors.frameworks.profile_event import CALL, OPERATOR, RUN

from trims.core.errors import PredictorError
from trims.trace.levels import Level

DUMP = (RECORDED / "mxnet.json").read_text()
NODES = [
    Node("conv", "Convolution"), Node("conv2", "Convolution"), Node("fc", "FullyConnected"), Node("sm", "softmax"),
]  # fmt: skip


def test_each_operator_is_one_event_with_the_name_of_its_node() -> None:
    profile = profile_of(DUMP, NODES, 7)
    operators = [each for each in profile.events if each.kind == OPERATOR]
    assert [(each.name, each.attributes["type"]) for each in operators] == [tuple(each) for each in NODES]
    assert {(each.parent, each.level) for each in operators} == {(RUN, Level.FRAMEWORK)}
    assert all(each.start_ns % 1000 == 7 for each in operators), "moved to the clock of spans"
    calls = {each.name for each in profile.events if each.kind == CALL}
    assert calls >= {"MXExecutorForward", "Reorder"}, "oneDNN's reordering is no node of the graph"
    assert (profile.accounted, profile.unread, profile.deepest) == (1.0, 0, Level.LIBRARY)


@pytest.mark.parametrize("nodes", [[], NODES[1:] + NODES[:1], [*NODES, Node("more", "abs")]])
def test_operators_keep_their_types_as_names_where_the_graph_does_not_agree(nodes: list[Node]) -> None:
    operators = [each for each in profile_of(DUMP, nodes, 0).events if each.kind == OPERATOR]
    assert [each.name for each in operators if each.name != "Reorder"] == [each.type for each in NODES]


def entries() -> Any:
    return json.loads(re.sub(r"\[\s*,", "[", DUMP, count=1))


def test_ends_without_a_beginning_and_beginnings_without_an_end_are_counted() -> None:
    found = entries()
    ends = [each for each in found["traceEvents"] if each.get("cat") == "operator" and each["ph"] == "E"]
    found["traceEvents"] = [each for each in found["traceEvents"] if each is not ends[-1]]
    found["traceEvents"].append({**ends[0], "name": "nothing"})
    assert profile_of(json.dumps(found), NODES, 0).unread == 2


@pytest.mark.parametrize("text", [DUMP[:300], "", "[]", '{"traceEvents": 1}', "{}"])
def test_a_profile_that_is_cut_off_is_refused(text: str) -> None:
    with pytest.raises(PredictorError):
        profile_of(text, NODES, 0)


def test_nodes_of_a_graph_are_its_operators_in_order() -> None:
    graph = {"nodes": [{"op": "null", "name": "x"}, {"op": "abs", "name": "a"}, {"op": "exp", "name": "b"}]}
    assert nodes_of(json.dumps(graph)) == [Node("a", "abs"), Node("b", "exp")]
    for wrong in ("", "{}", '{"nodes": [{}]}'):
        with pytest.raises(PredictorError):
            nodes_of(wrong)
