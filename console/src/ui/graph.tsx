import { Background, Controls, Handle, Position, ReactFlow, type Edge, type Node, type NodeProps } from "@xyflow/react";
import "@xyflow/react/dist/style.css";
import { useMemo } from "react";
import type { PipelineGraph } from "../api/types";
import { formatBytes, formatCount } from "../lib/format";
import { describeGraph, isSink, isSource, layOut, NODE_HEIGHT, NODE_WIDTH } from "../lib/graph";
import { recentOf, type OperatorMetrics } from "../lib/metrics";
import { useTheme } from "./theme";

interface GraphProps {
  graph: PipelineGraph;
  metrics?: ReadonlyMap<number, OperatorMetrics>;
  chosen?: number | null;
  onChoose?: (id: number) => void;
  /** The rows of an edge are asked for. */
  onChooseEdge?: (from: number, to: number) => void;
  direction?: "LR" | "TB";
}

type OperatorData = {
  title: string;
  detail: string;
  parallelism: number;
  role: "source" | "sink" | "operator";
  rate: string | null;
  pressure: number | null;
  chosen: boolean;
  down: boolean;
};

type OperatorNode = Node<OperatorData, "operator">;
type StageNode = Node<{ label: string }, "stage">;

function Operator({ data }: NodeProps<OperatorNode>) {
  const pressure = data.pressure ?? 0;
  const heat = pressure > 0.66 ? "hot" : pressure > 0.33 ? "warm" : "";
  return (
    <div className={["operator", `is-${data.role}`, heat, data.chosen ? "chosen" : ""].join(" ")}>
      <Handle type="target" position={data.down ? Position.Top : Position.Left} isConnectable={false} />
      <div className="row between">
        <span className="title clip">{data.title}</span>
        <span className="times" title={`${data.parallelism} subtasks`}>
          ×{data.parallelism}
        </span>
      </div>
      <span className="detail clip" title={data.detail}>
        {data.detail}
      </span>
      {data.rate !== null && <span className="rate num">{data.rate}</span>}
      {heat === "hot" && <span className="holds">holds others back</span>}
      <Handle type="source" position={data.down ? Position.Bottom : Position.Right} isConnectable={false} />
    </div>
  );
}

function Stage({ data }: NodeProps<StageNode>) {
  return <span className="stage-label">{data.label}</span>;
}

const nodeTypes = { operator: Operator, stage: Stage };

/** The operators of a pipeline and how rows flow between them. */
export function Graph({ graph, metrics, chosen, onChoose, onChooseEdge, direction = "LR" }: GraphProps) {
  const theme = useTheme();
  const layout = useMemo(() => layOut(graph, direction), [graph, direction]);
  const nodes = useMemo<(OperatorNode | StageNode)[]>(
    () => [
      ...layout.boxes.map(
        (box): StageNode => ({
          id: box.key,
          type: "stage",
          position: { x: box.x, y: box.y },
          data: { label: box.label },
          style: { width: box.width, height: box.height },
          className: "stage",
          selectable: false,
          focusable: false,
          zIndex: -1,
        }),
      ),
      ...layout.nodes.map(({ node, x, y }): OperatorNode => {
        const own = metrics?.get(node.node_id);
        const role = isSource(graph, node) ? "source" : isSink(graph, node) ? "sink" : "operator";
        const rate = own ? recentOf(role === "source" ? own.rowsOut : own.rowsIn) : null;
        const [title, detail] = [node.id, node.operator];
        return {
          id: String(node.node_id),
          type: "operator",
          position: { x, y },
          width: NODE_WIDTH,
          height: NODE_HEIGHT,
          selected: node.node_id === chosen,
          ariaLabel: `${title}, ${detail}, ${role}, parallelism ${node.parallelism}`,
          data: {
            title,
            detail,
            parallelism: node.parallelism,
            role,
            rate: rate === null ? null : `${formatCount(rate)} rows/s`,
            pressure: own?.backpressure ?? null,
            chosen: node.node_id === chosen,
            down: direction === "TB",
          },
        };
      }),
    ],
    [layout, graph, metrics, chosen, direction],
  );
  const edges = useMemo<Edge[]>(
    () =>
      graph.edges.map((edge) => {
        const from = metrics?.get(edge.src_id);
        const rows = from ? recentOf(from.rowsOut) : null;
        const bytes = from ? recentOf(from.bytesOut) : null;
        const shuffle = edge.edge_type.toLowerCase() !== "forward";
        const parts = [rows !== null && `${formatCount(rows)}/s`, bytes !== null && bytes > 0 && `${formatBytes(bytes)}/s`];
        const text = parts.filter(Boolean).join(" · ");
        return {
          id: `${edge.src_id}-${edge.dest_id}`,
          source: String(edge.src_id),
          target: String(edge.dest_id),
          animated: (rows ?? 0) > 0,
          className: shuffle ? "shuffle" : "",
          ...(shuffle && text ? { label: text } : {}),
          focusable: false,
        };
      }),
    [graph, metrics],
  );
  return (
    <div className="graph">
      <ReactFlow
        nodes={nodes}
        edges={edges}
        nodeTypes={nodeTypes}
        colorMode={theme}
        fitView
        fitViewOptions={{ padding: 0.12, maxZoom: 1.1 }}
        minZoom={0.15}
        nodesDraggable={false}
        nodesConnectable={false}
        edgesFocusable={false}
        {...(onChooseEdge && {
          onEdgeClick: (_: unknown, edge: Edge) => onChooseEdge(Number(edge.source), Number(edge.target)),
        })}
        onNodesChange={(changes) => {
          for (const change of changes) if (change.type === "select" && change.selected) onChoose?.(Number(change.id));
        }}
      >
        <Background gap={22} />
        <Controls showInteractive={false} />
      </ReactFlow>
      <ul className="visually-hidden" aria-label="The graph in words">
        {describeGraph(graph).map((sentence) => (
          <li key={sentence}>{sentence}</li>
        ))}
      </ul>
    </div>
  );
}
