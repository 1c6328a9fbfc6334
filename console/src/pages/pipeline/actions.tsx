import { useState } from "react";
import { useLocation } from "wouter";
import { useDelete, usePatchPipeline, useRestartPipeline } from "../../api/hooks";
import type { Job, Pipeline, StopMode } from "../../api/types";
import { canStart, canStop, isEnded, isRunning, STOP_MODES } from "../../lib/states";
import { Dialog } from "../../ui/dialog";
import { Menu } from "../../ui/menu";
import { Button, Field } from "../../ui/parts";
import { useToasts } from "../../ui/toasts";

type Question = "delete" | "scale" | "restart" | "interval" | null;

export function Actions({ pipeline, job }: { pipeline: Pipeline; job: Job | undefined }) {
  const [, navigate] = useLocation();
  const [question, setQuestion] = useState<Question>(null);
  const [number, setNumber] = useState("");
  const [ignoreState, setIgnoreState] = useState(false);
  const change = usePatchPipeline();
  const restart = useRestartPipeline();
  const remove = useDelete();
  const { fail, tell } = useToasts();
  const { id } = pipeline;
  const state = job?.state ?? "Created";
  const parallelism = Math.max(1, ...pipeline.graph.nodes.map((node) => node.parallelism));
  const stop = (mode: StopMode) => change.mutate({ id, stop: mode }, { onError: fail });
  const ask = (what: Question, text = "") => {
    setNumber(text);
    setIgnoreState(false);
    setQuestion(what);
  };
  const value = Number(number);
  return (
    <div className="row wrap">
      {canStart(state) && (
        <Button kind="primary" icon="play" disabled={change.isPending} onClick={() => stop("none")}>
          Start
        </Button>
      )}
      {canStop(state) && (
        <Button icon="stop" disabled={change.isPending} onClick={() => stop("checkpoint")}>
          Stop
        </Button>
      )}
      {(state === "CheckpointStopping" || state === "Stopping") && (
        <Button icon="stop" kind="danger" onClick={() => stop("force")}>
          Force stop
        </Button>
      )}
      <Menu
        button={{ icon: "more", label: "More actions" }}
        items={[
          ...(canStop(state)
            ? STOP_MODES.slice(1).map(({ mode, label, help }) => ({ label, help, onSelect: () => stop(mode) }))
            : []),
          { label: "Restart…", help: "Stops and starts again from the last checkpoint.", onSelect: () => ask("restart") },
          isRunning(state) && {
            label: "Change the parallelism…",
            help: `${parallelism} now; state moves to the new subtasks.`,
            onSelect: () => ask("scale", String(parallelism)),
          },
          {
            label: "Change the checkpoint interval…",
            onSelect: () => ask("interval", String(pipeline.checkpoint_interval_micros / 1e6)),
          },
          {
            label: "Change the program…",
            help: "Says first what becomes of the state.",
            onSelect: () => navigate(`/pipelines/new?change=${id}`),
          },
          {
            label: "Copy into a new pipeline",
            onSelect: () => navigate(`/pipelines/new?copy=${id}`),
          },
          isEnded(state) && { label: "Delete…", danger: true, onSelect: () => ask("delete") },
        ]}
      />
      {question === "delete" && (
        <Dialog
          title={`Delete ${pipeline.name}?`}
          confirm="Delete"
          danger
          onConfirm={async () => {
            await remove.mutateAsync(`/pipelines/${id}`);
            tell(`${pipeline.name} was deleted.`);
            navigate("/pipelines");
          }}
          onClose={() => setQuestion(null)}
        >
          <p>Its checkpoints, errors and metrics go with it. What it wrote to other systems stays.</p>
        </Dialog>
      )}
      {question === "restart" && (
        <Dialog
          title={`Restart ${pipeline.name}?`}
          confirm="Restart"
          onConfirm={() => restart.mutateAsync({ id, ignoreState })}
          onClose={() => setQuestion(null)}
        >
          <p>The pipeline goes on from its last checkpoint.</p>
          <label className="switch">
            <input type="checkbox" checked={ignoreState} onChange={(event) => setIgnoreState(event.target.checked)} />
            <span>
              Begin without state
              <br />
              <span className="muted small">Windows, aggregates and positions in the sources are forgotten.</span>
            </span>
          </label>
        </Dialog>
      )}
      {question === "scale" && (
        <Dialog
          title="Change the parallelism"
          confirm="Change"
          disabled={!Number.isInteger(value) || value < 1}
          onConfirm={() => change.mutateAsync({ id, parallelism: value })}
          onClose={() => setQuestion(null)}
        >
          <Field label="Subtasks per operator" help="Between two epochs, without losing a row.">
            {(field, help) => (
              <input
                id={field}
                aria-describedby={help}
                className="input"
                type="number"
                min={1}
                step={1}
                value={number}
                onChange={(event) => setNumber(event.target.value)}
              />
            )}
          </Field>
        </Dialog>
      )}
      {question === "interval" && (
        <Dialog
          title="Change the checkpoint interval"
          confirm="Change"
          disabled={!(value >= 1 && value <= 86_400)}
          onConfirm={() => change.mutateAsync({ id, checkpoint_interval_micros: Math.round(value * 1e6) })}
          onClose={() => setQuestion(null)}
        >
          <Field label="Seconds between checkpoints" help="From one second to a day.">
            {(field, help) => (
              <input
                id={field}
                aria-describedby={help}
                className="input"
                type="number"
                min={1}
                max={86_400}
                step="any"
                value={number}
                onChange={(event) => setNumber(event.target.value)}
              />
            )}
          </Field>
        </Dialog>
      )}
    </div>
  );
}
