import type { Job, JobState, StopMode } from "../api/types";

export type Tone = "good" | "bad" | "busy" | "idle" | "done";

const TONES: Record<JobState, Tone> = {
  Created: "busy",
  Compiling: "busy",
  Scheduling: "busy",
  Running: "good",
  Rescaling: "busy",
  Recovering: "busy",
  Restarting: "busy",
  CheckpointStopping: "busy",
  Stopping: "busy",
  Stopped: "idle",
  Finishing: "busy",
  Finished: "done",
  Failing: "bad",
  Failed: "bad",
};

const WORDS: Partial<Record<JobState, string>> = { CheckpointStopping: "Stopping", Scheduling: "Starting" };

export function toneOf(state: JobState): Tone {
  return TONES[state];
}

export function wordOf(state: JobState): string {
  return WORDS[state] ?? state;
}

export const GROUPS = ["running", "changing", "failed", "stopped", "finished"] as const;
export type Group = (typeof GROUPS)[number];

/** What a filter calls a state. */
export function groupOf(state: JobState): Group {
  const groups = { good: "running", bad: "failed", busy: "changing", idle: "stopped", done: "finished" } as const;
  return groups[TONES[state]];
}

export function isRunning(state: JobState): boolean {
  return state === "Running";
}

/** Whether a pipeline may be told to stop: it runs, or is about to. */
export function canStop(state: JobState): boolean {
  return !["Stopped", "Finished", "Failed", "Stopping", "CheckpointStopping", "Finishing", "Failing"].includes(state);
}

export function canStart(state: JobState): boolean {
  return ["Stopped", "Failed", "Finished"].includes(state);
}

export function isEnded(state: JobState): boolean {
  return canStart(state);
}

export const STOP_MODES: { mode: StopMode; label: string; help: string }[] = [
  { mode: "checkpoint", label: "Stop with a checkpoint", help: "Saves the state; a start resumes where it was." },
  { mode: "graceful", label: "Stop gracefully", help: "Ends after the rows that are under way." },
  { mode: "immediate", label: "Stop immediately", help: "Resumes from the last checkpoint." },
  { mode: "force", label: "Force stop", help: "Ends the process at once; resumes from the last checkpoint." },
];

/** The job of a pipeline: the newest, if there are several. */
export function latestJob(jobs: readonly Job[]): Job | undefined {
  return jobs.reduce<Job | undefined>((best, job) => (best && best.created_at >= job.created_at ? best : job), undefined);
}
