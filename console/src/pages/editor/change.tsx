import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { post, put } from "../../api/client";
import type { ChangePlan, Pipeline } from "../../api/types";
import { formatBytes, plural } from "../../lib/format";
import { bodyOf, type Program } from "../../lib/program";
import { Dialog } from "../../ui/dialog";
import { ErrorNotice, Loading } from "../../ui/parts";

interface ChangeDialogProps {
  pipeline: Pipeline;
  program: Program;
  onDone: () => void;
  onClose: () => void;
}

/** What another program does with the state of a pipeline, before it is applied. */
export function ChangeDialog({ pipeline, program, onDone, onClose }: ChangeDialogProps) {
  const client = useQueryClient();
  const [agreed, setAgreed] = useState(false);
  const { query, udfs, files } = bodyOf(program);
  const body = { query, udfs, ...(files && { files }), version: pipeline.version };
  const plan = useQuery({
    queryKey: ["plan", pipeline.id, body],
    queryFn: () => post<ChangePlan>(`/pipelines/${pipeline.id}/plan`, body),
    retry: false,
    gcTime: 0,
  });
  const outcome = plan.data?.outcome;
  const loses = outcome === "drops_state" || outcome === "refused";
  const apply = async () => {
    const given = { allow_drop: outcome === "drops_state", ignore_state: outcome === "refused" };
    await put<Pipeline>(`/pipelines/${pipeline.id}`, { ...body, ...given });
    await client.invalidateQueries({ queryKey: ["pipelines"] });
    onDone();
  };
  const ready = outcome === "applies" || (loses && agreed);
  return (
    <Dialog title={`Change ${pipeline.name}?`} confirm="Apply" danger={loses} disabled={!ready} onConfirm={apply} onClose={onClose}>
      {plan.isPending && <Loading what="Comparing with the state" />}
      {plan.error && <ErrorNotice error={plan.error} />}
      {plan.data && <Plan plan={plan.data} />}
      {loses && (
        <label className="switch">
          <input type="checkbox" checked={agreed} onChange={(event) => setAgreed(event.target.checked)} />
          <span>{outcome === "drops_state" ? "Go on without that state" : "Begin without any state"}</span>
        </label>
      )}
      {ready && !loses && <p className="muted small">A running pipeline finishes its epoch and goes on with the new program.</p>}
    </Dialog>
  );
}

function Plan({ plan }: { plan: ChangePlan }) {
  const sections = [
    {
      title: "Kept",
      items: plan.kept.map(({ operator_id, kind, rows, bytes }) =>
        kind === "position" ? `the position of ${operator_id}` : `the state of ${operator_id}: ${plural(rows, "row")}, ${formatBytes(bytes)}`,
      ),
    },
    { title: "Begins without state", items: plan.fresh },
    { title: "Lost", items: plan.dropped, bad: true },
    { title: "Does not fit the state", items: plan.refused, bad: true },
    { title: "Mistakes", items: plan.errors.map((error) => error.message), bad: true },
  ].filter(({ items }) => items.length > 0);
  return (
    <div className="stack tight" role="status">
      {plan.outcome === "unchanged" && <p>Nothing changes: the pipeline has this program.</p>}
      {plan.epoch !== null && plan.outcome !== "unchanged" && <p className="muted small">Compared with the state of epoch {plan.epoch}.</p>}
      {sections.map(({ title, items, bad }) => (
        <section key={title} className="plan" aria-label={title}>
          <h3 className={bad ? "bad" : ""}>{title}</h3>
          <ul>
            {items.map((item) => (
              <li key={item}>{item}</li>
            ))}
          </ul>
        </section>
      ))}
    </div>
  );
}
