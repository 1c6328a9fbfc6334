import { useState } from "react";
import { post } from "../../api/client";
import type { Pipeline, PipelinePost } from "../../api/types";
import { bodyOf, type Program } from "../../lib/program";
import { Dialog } from "../../ui/dialog";
import { Field } from "../../ui/parts";

interface StartDialogProps {
  program: Program;
  name: string;
  interval: number | null;
  onStarted: (pipeline: Pipeline) => void;
  onClose: () => void;
}

export function StartDialog({ program, name: proposed, interval, onStarted, onClose }: StartDialogProps) {
  const [name, setName] = useState(proposed);
  const [parallelism, setParallelism] = useState("1");
  const [seconds, setSeconds] = useState(interval === null ? "10" : String(interval / 1e6));
  const valid = name.trim() !== "" && Number.isInteger(Number(parallelism)) && Number(parallelism) > 0 && Number(seconds) >= 1;
  const start = async () => {
    const body: PipelinePost = {
      ...bodyOf(program),
      name: name.trim(),
      parallelism: Number(parallelism),
      checkpoint_interval_micros: Math.round(Number(seconds) * 1e6),
    };
    onStarted(await post<Pipeline>("/pipelines", body));
  };
  return (
    <Dialog title="Start the pipeline" confirm="Start" disabled={!valid} onConfirm={start} onClose={onClose}>
      <Field label="Name" required>
        {(id) => <input id={id} className="input" value={name} onChange={(event) => setName(event.target.value)} required />}
      </Field>
      <Field label="Parallelism" help="Subtasks of each operator; it can be changed while the pipeline runs.">
        {(id, help) => (
          <input
            id={id}
            aria-describedby={help}
            className="input"
            type="number"
            min={1}
            value={parallelism}
            onChange={(event) => setParallelism(event.target.value)}
          />
        )}
      </Field>
      <Field label="Seconds between checkpoints" help="From one second to a day.">
        {(id, help) => (
          <input
            id={id}
            aria-describedby={help}
            className="input"
            type="number"
            min={1}
            max={86_400}
            step="any"
            value={seconds}
            onChange={(event) => setSeconds(event.target.value)}
          />
        )}
      </Field>
    </Dialog>
  );
}
