import { useEffect, useRef } from "react";
import uPlot from "uplot";
import "uplot/dist/uPlot.min.css";
import { formatCount } from "../lib/format";
import { useTheme } from "./theme";

export interface Line {
  label: string;
  times: readonly number[];
  values: readonly (number | null)[];
}

interface ChartProps {
  title: string;
  lines: readonly Line[];
  format?: (value: number) => string;
  height?: number;
}

function colour(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function clock(seconds: number | null | undefined): string {
  return seconds == null ? "–" : new Date(seconds * 1000).toLocaleTimeString("en-GB");
}

/** Joins lines over all their times. */
export function align(lines: readonly Line[]): (number | null)[][] {
  const times = [...new Set(lines.flatMap((line) => line.times))].sort((a, b) => a - b);
  const columns = lines.map((line) => {
    const known = new Map(line.times.map((time, index) => [time, line.values[index] ?? null]));
    return times.map((time) => known.get(time) ?? null);
  });
  return [times, ...columns];
}

/** A chart over time. */
export function Chart({ title, lines, format = formatCount, height = 150 }: ChartProps) {
  const host = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const theme = useTheme();
  const shape = lines.map((line) => line.label).join("\n");
  const data = align(lines) as uPlot.AlignedData;
  const latest = useRef(data);
  useEffect(() => {
    latest.current = data;
    plot.current?.setData(data);
  });
  useEffect(() => {
    const element = host.current;
    if (!element) return;
    const axis = {
      stroke: colour("--muted"),
      grid: { stroke: colour("--border"), width: 1 },
      ticks: { show: false },
      font: "11px system-ui",
    };
    const chart = new uPlot(
      {
        width: element.clientWidth,
        height,
        cursor: { y: false, points: { size: 6 } },
        legend: { show: true, live: true },
        scales: { y: { range: (_, low, high) => [Math.min(0, low), high > 0 ? high * 1.12 : 1] } },
        axes: [
          { ...axis, space: 70, values: (_, times) => times.map(clock) },
          { ...axis, size: 58, values: (_, values) => values.map(format) },
        ],
        series: [
          { label: "at", value: (self, time) => clock(self.cursor.idx == null ? self.data[0].at(-1) : time) },
          ...shape.split("\n").map((label, index) => ({
            label,
            stroke: colour(`--line-${(index % 4) + 1}`),
            width: 1.8,
            points: { show: false },
            spanGaps: true,
            // Without a pointer in the chart the legend shows the newest values.
            value: (self: uPlot, value: number | null) => {
              const shown = self.cursor.idx == null ? self.data[index + 1]?.at(-1) : value;
              return shown == null ? "–" : format(shown);
            },
          })),
        ],
      },
      latest.current,
      element,
    );
    plot.current = chart;
    const resize = new ResizeObserver(() => chart.setSize({ width: element.clientWidth, height }));
    resize.observe(element);
    return () => {
      resize.disconnect();
      chart.destroy();
      plot.current = null;
    };
  }, [shape, theme, height, format]);
  const last = lines.map((line) => `${line.label} ${line.values.at(-1) == null ? "unknown" : format(line.values.at(-1) ?? 0)}`);
  return (
    <figure className="chart" aria-label={`${title}: ${last.join(", ")}`}>
      <figcaption>{title}</figcaption>
      <div ref={host} aria-hidden="true" />
    </figure>
  );
}
