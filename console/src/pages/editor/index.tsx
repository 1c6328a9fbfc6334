import { useQuery } from "@tanstack/react-query";
import { useDeferredValue, useEffect, useMemo, useState } from "react";
import { useLocation, useSearchParams } from "wouter";
import { get, post } from "../../api/client";
import { useConnectors, useTables, useUdfs } from "../../api/hooks";
import { useFunctions } from "../../api/language";
import type { Kind, Page, Pipeline, QueryValidation, Version } from "../../api/types";
import { columnsByTable, sqlCompletion } from "../../lib/completion";
import { plural } from "../../lib/format";
import { problemsOf } from "../../lib/problems";
import { bodyOf, EXAMPLES, isExample, KINDS, languageOf, type Program } from "../../lib/program";
import { Code } from "../../ui/code";
import { Graph } from "../../ui/graph";
import { Icon } from "../../ui/icons";
import { Button, Empty, ErrorNotice } from "../../ui/parts";
import { Tabs, type Tab } from "../../ui/tabs";
import { ChangeDialog } from "./change";
import { Files, textOfPart, withText, type Part } from "./files";
import { Preview } from "./preview";
import { Problems } from "./problems";
import { Sidebar } from "./sidebar";
import { StartDialog } from "./start";

const DRAFT = "headrace-draft";

function savedDraft(): Program | null {
  try {
    const saved = JSON.parse(sessionStorage.getItem(DRAFT) ?? "null") as Partial<Program> | null;
    return saved && { ...EXAMPLES.sql, ...saved };
  } catch {
    return null;
  }
}

/** A new pipeline, a copy of one (`?copy=`), or another program for one (`?change=`), perhaps an earlier one (`&version=`). */
export default function EditorPage() {
  const [search] = useSearchParams();
  const [copied, changed, version] = [search.get("copy"), search.get("change"), search.get("version")];
  const id = changed ?? copied;
  const original = useQuery({
    queryKey: ["pipelines", id, "original"],
    queryFn: () => get<Pipeline>(`/pipelines/${id ?? ""}`),
    enabled: id !== null,
    // What is being edited does not change under the hands.
    staleTime: Infinity,
    gcTime: 0,
  });
  const versions = useQuery({
    queryKey: ["pipelines", id, "earlier"],
    queryFn: async () => (await get<Page<Version>>(`/pipelines/${id ?? ""}/versions`)).data,
    enabled: id !== null && version !== null,
    staleTime: Infinity,
    gcTime: 0,
  });
  if (original.error) {
    return (
      <div className="page">
        <ErrorNotice error={original.error} />
      </div>
    );
  }
  if ((id !== null && !original.data) || (version !== null && versions.isPending)) return null;
  const earlier = versions.data?.find((one) => one.version === Number(version));
  const draft = original.data ? { ...original.data, ...earlier } : (savedDraft() ?? EXAMPLES.sql);
  return (
    <Editor
      key={`${id} ${version}`}
      draft={{ kind: draft.kind, query: draft.query, udfs: draft.udfs, files: draft.files }}
      original={original.data ?? null}
      changes={changed !== null}
    />
  );
}

type Bottom = "problems" | "preview";

/** A value once it has stood still for a while. */
function useSettled<T>(value: T, milliseconds: number): T {
  const [settled, setSettled] = useState(value);
  useEffect(() => {
    const timer = setTimeout(() => setSettled(value), milliseconds);
    return () => clearTimeout(timer);
  }, [value, milliseconds]);
  return settled;
}

interface EditorProps {
  draft: Program;
  /** The pipeline that is copied or changed. */
  original: Pipeline | null;
  changes: boolean;
}

function Editor({ draft, original, changes }: EditorProps) {
  const [, navigate] = useLocation();
  const [program, setProgram] = useState(draft);
  const [part, setPart] = useState<Part>(null);
  const { kind, query } = program;
  const [bottom, setBottom] = useState<Bottom>("problems");
  const [starting, setStarting] = useState(false);
  const [previewed, setPreviewed] = useState<{ program: Program; turn: number } | null>(null);
  const tables = useTables();
  const connectors = useConnectors();
  const functions = useFunctions();
  const globals = useUdfs();

  useEffect(() => {
    if (!changes) sessionStorage.setItem(DRAFT, JSON.stringify(program));
  }, [program, changes]);
  const settled = useSettled(program, 350);
  const check = useQuery({
    queryKey: ["validate", settled],
    queryFn: () => post<QueryValidation>("/pipelines/validate_query", bodyOf(settled)),
    enabled: settled.query.trim() !== "",
    placeholderData: (before) => before,
    staleTime: Infinity,
    gcTime: 0,
  });
  const problems = useMemo(() => problemsOf(check.data?.errors ?? null), [check.data]);
  const graph = check.data?.graph ?? null;
  const checking = check.isFetching || settled !== program;

  const columns = useDeferredValue(columnsByTable(tables.data ?? [], query));
  const columnsText = JSON.stringify(columns);
  const namespace = useMemo(() => JSON.parse(columnsText) as Record<string, string[]>, [columnsText]);
  const complete = useMemo(
    () =>
      sqlCompletion(connectors.data ?? [], [
        ...(functions ?? []),
        ...(globals.data ?? []).map((udf) => ({ name: udf.name, signature: udf.language, description: udf.description ?? "" })),
      ]),
    [connectors.data, functions, globals.data],
  );

  const preview = () => {
    setPreviewed({ program, turn: (previewed?.turn ?? 0) + 1 });
    setBottom("preview");
  };
  const chooseKind = (other: Kind) => {
    setProgram(EXAMPLES[other]);
    setPart(null);
  };
  const bottoms: Tab<Bottom>[] = [
    { key: "problems", label: "Problems", count: problems.length, bad: true },
    { key: "preview", label: "Preview" },
  ];
  const ready = graph !== null && problems.length === 0 && !checking;

  return (
    <div className="page full">
      <div className="page-head">
        <h1 className="grow">{changes ? `Change ${original?.name ?? ""}` : "New pipeline"}</h1>
        {original === null && (
          <div className="row">
            <label className="row small">
              Kind
              <select
                className="select auto"
                value={kind}
                disabled={!isExample(program)}
                title={isExample(program) ? undefined : "Begin again to choose another kind"}
                onChange={(event) => chooseKind(event.target.value as Kind)}
              >
                {Object.entries(KINDS).map(([name, { label }]) => (
                  <option key={name} value={name}>
                    {label}
                  </option>
                ))}
              </select>
            </label>
            {!isExample(program) && (
              <Button small kind="plain" onClick={() => chooseKind(kind)}>
                Begin again
              </Button>
            )}
          </div>
        )}
        <CheckState checking={checking} problems={problems.length} failed={check.error !== null} />
        <Button icon="search" disabled={!ready} onClick={preview} title="Run it for a minute and look at its rows">
          Preview
        </Button>
        <Button icon="play" kind="primary" disabled={!ready} onClick={() => setStarting(true)}>
          {changes ? "Apply…" : "Start…"}
        </Button>
      </div>
      <div className="editor">
        {kind === "sql" ? (
          <Sidebar tables={tables.data} local={namespace} functions={functions} udfs={globals.data} />
        ) : (
          <About kind={kind} />
        )}
        <div className="middle">
          <section className="card" aria-label="Program">
            <Files program={program} current={part} onChoose={setPart} onChange={setProgram} />
            <div className="scroll">
              {part === null ? (
                <Code
                  key={kind}
                  label={kind === "sql" ? "Query" : KINDS[kind].label}
                  language={KINDS[kind].language}
                  value={query}
                  onChange={(text) => setProgram((before) => withText(before, null, text))}
                  problems={problems}
                  {...(kind === "sql" && { tables: namespace, complete })}
                  onRun={() => ready && preview()}
                />
              ) : (
                <Code
                  key={part}
                  label={typeof part === "number" ? `Function ${part + 1}` : part}
                  language={typeof part === "number" ? (program.udfs[part]?.language ?? "python") : languageOf(part)}
                  value={textOfPart(program, part)}
                  onChange={(text) => setProgram((before) => withText(before, part, text))}
                />
              )}
            </div>
          </section>
          <section className="card" aria-label="Problems and preview">
            <Tabs label="Results" tabs={bottoms} current={bottom} onChange={setBottom}>
              <div className="scroll">
                {bottom === "problems" && (
                  <Problems problems={problems} error={check.error} empty={query.trim() === ""} />
                )}
                {bottom === "preview" &&
                  (previewed ? (
                    <Preview key={previewed.turn} program={previewed.program} />
                  ) : (
                    <Empty title="No preview yet">
                      <p>A preview runs the program for a minute. It writes nothing: rows for sinks are shown here.</p>
                    </Empty>
                  ))}
              </div>
            </Tabs>
          </section>
        </div>
        <section className="card" aria-label="Graph">
          <header>
            <h2 className="grow">Graph</h2>
            {graph && <span className="muted small">{plural(graph.nodes.length, "operator")}</span>}
          </header>
          {graph ? (
            <Graph key={graph.nodes.length} graph={graph} direction="TB" />
          ) : (
            <Empty title="The graph comes with a program that is right" />
          )}
        </section>
      </div>
      {starting && !changes && (
        <StartDialog
          program={program}
          name={original ? `${original.name} copy` : ""}
          interval={original?.checkpoint_interval_micros ?? null}
          onStarted={(pipeline) => {
            sessionStorage.removeItem(DRAFT);
            navigate(`/pipelines/${pipeline.id}`);
          }}
          onClose={() => setStarting(false)}
        />
      )}
      {starting && changes && original && (
        <ChangeDialog
          pipeline={original}
          program={program}
          onDone={() => navigate(`/pipelines/${original.id}/query`)}
          onClose={() => setStarting(false)}
        />
      )}
    </div>
  );
}

const HELP = {
  dataflow:
    "A dataflow in dora's YAML. The files that it names, such as operators in Python, stand beside it. What operators print is in the pipeline's log.",
  python: "A Python file that defines a pipeline. Rows of the sink `preview` are shown as outputs.",
};

function About({ kind }: { kind: keyof typeof HELP }) {
  return (
    <section className="card" aria-label="About this kind">
      <div className="body">
        <p className="muted small">{HELP[kind]}</p>
        <p className="muted small">Its code runs on the server: the role `author` is needed.</p>
      </div>
    </section>
  );
}

function CheckState({ checking, problems, failed }: { checking: boolean; problems: number; failed: boolean }) {
  if (checking)
    return (
      <span className="row muted small" role="status">
        <span className="spinner" aria-hidden="true" />
        Checking…
      </span>
    );
  if (failed) return null;
  return (
    <span className={`row small ${problems > 0 ? "bad" : "good"}`} role="status">
      <Icon name={problems > 0 ? "warning" : "check"} size={15} />
      {problems > 0 ? plural(problems, "problem") : "No problems"}
    </span>
  );
}
