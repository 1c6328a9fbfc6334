import { memo } from "react";

interface SparklineProps {
  values: readonly (number | null)[];
  label: string;
  width?: number;
  height?: number;
}

/** The course of a number, without axes. */
export const Sparkline = memo(function Sparkline({ values, label, width = 84, height = 24 }: SparklineProps) {
  const known = values.filter((value) => value !== null);
  if (known.length < 2) return <svg width={width} height={height} aria-hidden="true" />;
  const top = Math.max(...known, 1e-9);
  const step = width / (values.length - 1);
  const points = values.map((value, index) =>
    value === null ? null : `${(index * step).toFixed(1)},${(height - 2 - (value / top) * (height - 4)).toFixed(1)}`,
  );
  const line = points.filter((point) => point !== null).join(" ");
  return (
    <svg className="spark" width={width} height={height} role="img" aria-label={label}>
      <polygon points={`0,${height} ${line} ${width},${height}`} fill="currentColor" opacity="0.14" />
      <polyline points={line} fill="none" stroke="currentColor" strokeWidth="1.5" strokeLinejoin="round" />
    </svg>
  );
});
