import { useQuery } from "@tanstack/react-query";
import { useEffect, useMemo } from "react";
import { History, rowOf, type Row } from "../lib/listing";
import { get, getAll } from "./client";
import type { Pipeline, Progress } from "./types";

export interface Overview {
  rows: Row[] | undefined;
  error: Error | null;
  refetch: () => Promise<unknown>;
}

/** Rows per second since this page was opened, for the sparklines. */
const history = new History();

/** Every pipeline with how it is. Programs are asked for seldom, progress often: it is small. */
export function useOverview(): Overview {
  const pipelines = useQuery({
    queryKey: ["pipelines"],
    queryFn: ({ signal }) => getAll<Pipeline>("/pipelines", signal),
    refetchInterval: 15_000,
  });
  const progress = useQuery({
    queryKey: ["progress"],
    queryFn: async ({ signal }) => {
      const answer = await get<Record<string, Progress>>("/progress", signal);
      history.add(answer);
      return answer;
    },
    refetchInterval: 2000,
  });
  const known = pipelines.data?.length;
  const told = progress.data && Object.keys(progress.data).length;
  const { refetch } = pipelines;
  useEffect(() => {
    // One was created or deleted elsewhere.
    if (known !== undefined && told !== undefined && known !== told) void refetch();
  }, [known, told, refetch]);
  const rows = useMemo(
    () => pipelines.data?.map((pipeline) => rowOf(pipeline, progress.data?.[pipeline.id], history.of(pipeline.id))),
    [pipelines.data, progress.data],
  );
  return {
    rows,
    error: pipelines.error ?? progress.error,
    refetch: () => Promise.all([pipelines.refetch(), progress.refetch()]),
  };
}
