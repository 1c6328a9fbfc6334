import { useState } from "react";
import { useCheckpointGroups, useCheckpoints, useRestartPipeline } from "../../api/hooks";
import type { Checkpoint, CheckpointEvent, Job, OperatorCheckpointGroup, PipelineGraph } from "../../api/types";
import { formatAge, formatBytes, formatSeconds, formatTime, plural } from "../../lib/format";
import { words } from "../../lib/schema";
import { Dialog } from "../../ui/dialog";
import { Button, Empty, ErrorNotice, Facts, Loading, Tag } from "../../ui/parts";
import { useToasts } from "../../ui/toasts";

interface CheckpointsTabProps {
  pipeline: string;
  job: Job | undefined;
  graph: PipelineGraph;
}

const PAGE = 25;

export function CheckpointsTab({ pipeline, job, graph }: CheckpointsTabProps) {
  const { data, error, refetch } = useCheckpoints(pipeline, job?.id);
  const [chosen, setChosen] = useState<number | null>(null);
  const [shown, setShown] = useState(PAGE);
  if (error) return <ErrorNotice error={error} retry={() => void refetch()} />;
  if (!data || !job) return <Loading />;
  const checkpoints = [...data].sort((a, b) => b.epoch - a.epoch);
  const newest = checkpoints[0];
  if (!newest) return <Empty title="No checkpoint yet">A checkpoint is taken at the end of each epoch.</Empty>;
  const current = checkpoints.find((checkpoint) => checkpoint.epoch === chosen) ?? newest;
  const slowest = Math.max(...checkpoints.map(secondsOf), 0.001);
  return (
    <div className="checkpoints">
      <section className="card" aria-label="Checkpoints">
        <div className="table-wrap">
          <table className="table">
            <caption className="visually-hidden">Checkpoints, the newest first</caption>
            <thead>
              <tr>
                <th scope="col">Epoch</th>
                <th scope="col">Started</th>
                <th scope="col">Took</th>
                <th scope="col">Kind</th>
              </tr>
            </thead>
            <tbody>
              {checkpoints.slice(0, shown).map((checkpoint) => (
                <tr key={checkpoint.epoch} className={checkpoint === current ? "chosen" : ""}>
                  <td>
                    <button
                      type="button"
                      className="link"
                      aria-pressed={checkpoint === current}
                      onClick={() => setChosen(checkpoint.epoch)}
                    >
                      {checkpoint.epoch}
                    </button>
                  </td>
                  <td className="num" title={formatTime(checkpoint.start_time)}>
                    {formatAge(checkpoint.start_time)}
                  </td>
                  <td className="num">
                    <span className="meter" aria-hidden="true">
                      <span style={{ width: `${(secondsOf(checkpoint) / slowest) * 100}%` }} />
                    </span>
                    {checkpoint.finish_time === null ? "under way" : formatSeconds(secondsOf(checkpoint))}
                  </td>
                  <td>
                    <Tag>{checkpoint.checkpoint_type}</Tag>
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
        {checkpoints.length > shown && (
          <div className="body">
            <Button small onClick={() => setShown(shown + PAGE)}>
              Show {Math.min(PAGE, checkpoints.length - shown)} more of {checkpoints.length}
            </Button>
          </div>
        )}
      </section>
      <Details pipeline={pipeline} job={job} checkpoint={current} graph={graph} />
    </div>
  );
}

function secondsOf({ start_time, finish_time }: { start_time: number; finish_time: number | null }): number {
  return finish_time === null ? 0 : (finish_time - start_time) / 1e6;
}

interface DetailsProps {
  pipeline: string;
  job: Job;
  checkpoint: Checkpoint;
  graph: PipelineGraph;
}

function Details({ pipeline, job, checkpoint, graph }: DetailsProps) {
  const { data } = useCheckpointGroups(pipeline, job.id, checkpoint.epoch);
  const [asking, setAsking] = useState(false);
  const restart = useRestartPipeline();
  const { tell } = useToasts();
  const groups = [...(data ?? [])].sort((a, b) => b.bytes - a.bytes);
  const bytes = groups.reduce((sum, group) => sum + group.bytes, 0);
  return (
    <section className="card" aria-label={`Checkpoint of epoch ${checkpoint.epoch}`}>
      <header>
        <h2 className="grow">Epoch {checkpoint.epoch}</h2>
        <Tag>{checkpoint.backend}</Tag>
        {checkpoint.finish_time !== null && (
          <Button small onClick={() => setAsking(true)}>
            Resume from here…
          </Button>
        )}
      </header>
      {asking && (
        <Dialog
          title={`Resume from epoch ${checkpoint.epoch}?`}
          confirm="Resume"
          danger
          onConfirm={async () => {
            await restart.mutateAsync({ id: pipeline, fromEpoch: checkpoint.epoch });
            tell(`The pipeline goes back to epoch ${checkpoint.epoch}.`);
          }}
          onClose={() => setAsking(false)}
        >
          <p>
            The pipeline stops, and starts again with the state and the positions of this checkpoint. Later checkpoints are
            removed, and what was read after it is read again.
          </p>
          <p>Sinks that cannot take back what they wrote after it have those rows twice.</p>
        </Dialog>
      )}
      <div className="body stack">
        <Facts
          facts={[
            { name: "Started", value: formatTime(checkpoint.start_time) },
            { name: "Took", value: checkpoint.finish_time === null ? "under way" : formatSeconds(secondsOf(checkpoint)) },
            data && { name: "State", value: formatBytes(bytes) },
            data && { name: "Operators with state", value: groups.filter((group) => group.bytes > 0).length },
          ]}
        />
        {checkpoint.events.length > 0 && <Timeline events={checkpoint.events} />}
        {groups.length > 0 && <Groups groups={groups} graph={graph} />}
      </div>
    </section>
  );
}

function Timeline({ events }: { events: CheckpointEvent[] }) {
  const start = Math.min(...events.map((event) => event.start_time));
  const end = Math.max(...events.map((event) => event.finish_time ?? event.start_time), start + 1);
  const position = (time: number) => ((time - start) / (end - start)) * 100;
  return (
    <ol className="timeline" aria-label="Steps of the checkpoint">
      {events.map((event, index) => {
        const until = event.finish_time ?? end;
        return (
          <li key={`${event.event}-${index}`}>
            <span className="clip" title={event.description}>
              {words(event.event.replace(/([a-z])([A-Z])/g, "$1 $2").toLowerCase())}
            </span>
            <span className="track" aria-hidden="true">
              <span
                style={{ left: `${position(event.start_time)}%`, width: `${Math.max(position(until) - position(event.start_time), 0.8)}%` }}
              />
            </span>
            <span className="num muted">{event.finish_time === null ? "under way" : formatSeconds((until - event.start_time) / 1e6)}</span>
          </li>
        );
      })}
    </ol>
  );
}

function Groups({ groups, graph }: { groups: OperatorCheckpointGroup[]; graph: PipelineGraph }) {
  const most = Math.max(...groups.map((group) => group.bytes), 1);
  const nameOf = (id: string) => {
    const node = graph.nodes.find((one) => String(one.node_id) === id || one.id === id);
    return node?.id ?? id;
  };
  return (
    <div className="table-wrap">
      <table className="table dense">
        <caption className="visually-hidden">State by operator</caption>
        <thead>
          <tr>
            <th scope="col">Operator</th>
            <th scope="col">State</th>
            <th scope="col" className="right">
              Subtasks
            </th>
          </tr>
        </thead>
        <tbody>
          {groups.map((group) => (
            <tr key={group.operator_id}>
              <td>{nameOf(group.operator_id)}</td>
              <td className="num">
                <span className="meter" aria-hidden="true">
                  <span style={{ width: `${(group.bytes / most) * 100}%` }} />
                </span>
                {formatBytes(group.bytes)}
              </td>
              <td className="right" title={group.subtasks.map((one) => `${one.index}: ${formatBytes(one.bytes)}`).join("\n")}>
                {plural(group.subtasks.length, "subtask")}
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
