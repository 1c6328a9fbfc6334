import dagre from "@dagrejs/dagre";
import type { GraphEdge, GraphNode, PipelineGraph } from "../api/types";

export const NODE_WIDTH = 232;
export const NODE_HEIGHT = 74;
const MARGIN = 14;
const TITLE = 26;

export interface PlacedNode {
  node: GraphNode;
  x: number;
  y: number;
}

/** A box around what runs in one stage. */
export interface Box {
  key: string;
  label: string;
  x: number;
  y: number;
  width: number;
  height: number;
}

export interface Layout {
  nodes: PlacedNode[];
  boxes: Box[];
}

/** Places the operators from left to right, or from top to bottom. */
export function layOut(graph: PipelineGraph, direction: "LR" | "TB"): Layout {
  const stages = stagesOf(graph);
  const grouped = stages.size > 1;
  const drawing = new dagre.graphlib.Graph({ compound: grouped });
  drawing.setGraph({ rankdir: direction, nodesep: 34, ranksep: direction === "TB" ? 34 : 62, marginx: 8, marginy: 8 });
  drawing.setDefaultEdgeLabel(() => ({}));
  if (grouped) for (const stage of stages.keys()) drawing.setNode(`stage-${stage}`, {});
  for (const node of graph.nodes) {
    drawing.setNode(String(node.node_id), { width: NODE_WIDTH, height: NODE_HEIGHT });
    if (grouped) drawing.setParent(String(node.node_id), `stage-${node.stage}`);
  }
  for (const edge of graph.edges) drawing.setEdge(String(edge.src_id), String(edge.dest_id));
  dagre.layout(drawing);
  const nodes = graph.nodes.map((node) => {
    const { x = 0, y = 0 } = drawing.node(String(node.node_id)) as { x?: number; y?: number };
    return { node, x: x - NODE_WIDTH / 2, y: y - NODE_HEIGHT / 2 };
  });
  const boxes = grouped
    ? [...stages].map(([stage, members]) => around(stage, nodes.filter(({ node }) => members.includes(node.node_id))))
    : [];
  return { nodes, boxes };
}

function stagesOf(graph: PipelineGraph): Map<number, number[]> {
  const stages = new Map<number, number[]>();
  for (const node of graph.nodes) {
    stages.set(node.stage, [...(stages.get(node.stage) ?? []), node.node_id]);
  }
  return stages;
}

function around(stage: number, members: PlacedNode[]): Box {
  const x = Math.min(...members.map((member) => member.x)) - MARGIN;
  const y = Math.min(...members.map((member) => member.y)) - MARGIN - TITLE;
  const right = Math.max(...members.map((member) => member.x)) + NODE_WIDTH + MARGIN;
  const bottom = Math.max(...members.map((member) => member.y)) + NODE_HEIGHT + MARGIN;
  return { key: `stage-${stage}`, label: `Stage ${stage}`, x, y, width: right - x, height: bottom - y };
}

export function inputsOf(graph: PipelineGraph, id: number): GraphEdge[] {
  return graph.edges.filter((edge) => edge.dest_id === id);
}

export function isSource(graph: PipelineGraph, node: GraphNode): boolean {
  return inputsOf(graph, node.node_id).length === 0;
}

export function isSink(graph: PipelineGraph, node: GraphNode): boolean {
  return !graph.edges.some((edge) => edge.src_id === node.node_id);
}

export interface NamedEdge {
  from: string;
  to: string;
}

/** The edges, by the names of the operators that they join. */
export function edgesOf(graph: PipelineGraph): NamedEdge[] {
  const names = new Map(graph.nodes.map((node) => [node.node_id, node.id]));
  return graph.edges.map((edge) => ({ from: names.get(edge.src_id) ?? "", to: names.get(edge.dest_id) ?? "" }));
}

/** The graph as sentences, for who cannot see it. */
export function describeGraph(graph: PipelineGraph): string[] {
  const names = new Map(graph.nodes.map((node) => [node.node_id, node.id]));
  return graph.nodes.map((node) => {
    const targets = graph.edges
      .filter((edge) => edge.src_id === node.node_id)
      .map((edge) => names.get(edge.dest_id) ?? String(edge.dest_id));
    const name = names.get(node.node_id) ?? "";
    return targets.length > 0 ? `${name} feeds ${targets.join(" and ")}` : `${name} is an end`;
  });
}
