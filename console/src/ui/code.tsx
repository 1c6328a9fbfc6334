import { autocompletion, closeBrackets, closeBracketsKeymap, completionKeymap, type CompletionSource } from "@codemirror/autocomplete";
import { defaultKeymap, history, historyKeymap } from "@codemirror/commands";
import { python } from "@codemirror/lang-python";
import { rust } from "@codemirror/lang-rust";
import { PostgreSQL, sql, type SQLNamespace } from "@codemirror/lang-sql";
import { yaml } from "@codemirror/lang-yaml";
import { bracketMatching, HighlightStyle, indentOnInput, syntaxHighlighting } from "@codemirror/language";
import { lintGutter, lintKeymap, setDiagnostics, type Diagnostic } from "@codemirror/lint";
import { highlightSelectionMatches, searchKeymap } from "@codemirror/search";
import { Compartment, EditorState, type Extension } from "@codemirror/state";
import {
  drawSelection,
  EditorView,
  highlightActiveLine,
  highlightActiveLineGutter,
  highlightSpecialChars,
  keymap,
  lineNumbers,
} from "@codemirror/view";
import { tags } from "@lezer/highlight";
import { useEffect, useRef } from "react";

export type Language = "sql" | "python" | "rust" | "yaml" | "json";

export interface Problem {
  message: string;
  /** Lines and columns start at 1; null if the server could not tell where. */
  from: { line: number; column: number } | null;
  to: { line: number; column: number } | null;
  severity: "error" | "warning";
}

interface CodeProps {
  value: string;
  label: string;
  language: Language;
  onChange?: (value: string) => void;
  problems?: readonly Problem[];
  tables?: SQLNamespace;
  complete?: CompletionSource | undefined;
  onRun?: () => void;
  /** Grows with its text instead of filling its place. */
  grows?: boolean;
}

const highlight = HighlightStyle.define([
  { tag: [tags.keyword, tags.operatorKeyword, tags.modifier], color: "var(--syntax-keyword)" },
  { tag: [tags.string, tags.special(tags.string)], color: "var(--syntax-string)" },
  { tag: [tags.number, tags.bool, tags.null], color: "var(--syntax-number)" },
  { tag: [tags.comment], color: "var(--syntax-comment)", fontStyle: "italic" },
  { tag: [tags.typeName, tags.className], color: "var(--syntax-type)" },
  { tag: [tags.function(tags.variableName), tags.definition(tags.variableName)], color: "var(--syntax-function)" },
]);

const look = EditorView.theme({
  "&": { height: "100%", fontSize: "13px", color: "var(--text)", backgroundColor: "transparent" },
  ".cm-scroller": { fontFamily: "var(--mono)", lineHeight: "1.6" },
  ".cm-content": { caretColor: "var(--text)", padding: "10px 0" },
  ".cm-cursor": { borderLeftColor: "var(--text)" },
  ".cm-gutters": { backgroundColor: "transparent", color: "var(--muted)", border: "none" },
  ".cm-activeLine, .cm-activeLineGutter": { backgroundColor: "color-mix(in srgb, var(--surface-2) 70%, transparent)" },
  "&.cm-focused": { outline: "none" },
  "&.cm-focused .cm-selectionBackground, .cm-selectionBackground": { backgroundColor: "color-mix(in srgb, var(--accent) 24%, transparent) !important" },
  ".cm-tooltip": {
    backgroundColor: "var(--surface)",
    color: "var(--text)",
    border: "1px solid var(--border)",
    borderRadius: "8px",
    boxShadow: "var(--shadow-high)",
    overflow: "hidden",
  },
  ".cm-tooltip.cm-tooltip-autocomplete > ul": { fontFamily: "var(--mono)", fontSize: "12.5px", maxHeight: "17em" },
  ".cm-tooltip.cm-tooltip-autocomplete > ul > li": { padding: "3px 10px" },
  ".cm-tooltip-autocomplete ul li[aria-selected]": { backgroundColor: "var(--accent-soft)", color: "var(--text)" },
  ".cm-completionDetail": { color: "var(--muted)", fontStyle: "normal", marginLeft: "1em" },
  ".cm-completionInfo": { padding: "8px 10px", maxWidth: "340px", fontFamily: "var(--font)" },
  ".cm-diagnostic": { fontFamily: "var(--font)", whiteSpace: "pre-wrap", maxWidth: "560px" },
  ".cm-panels": { backgroundColor: "var(--surface-2)", color: "var(--text)" },
  ".cm-matchingBracket": { backgroundColor: "var(--accent-soft) !important" },
});

function languageOf(language: Language, tables: SQLNamespace | undefined): Extension {
  switch (language) {
    case "sql":
      return sql({ dialect: PostgreSQL, upperCaseKeywords: true, ...(tables ? { schema: tables } : {}) });
    case "python":
      return python();
    case "rust":
      return rust();
    case "yaml":
      return yaml();
    case "json":
      return [];
  }
}

/** A text editor; without `onChange` it only shows. */
export function Code({ value, label, language, onChange, problems, tables, complete, onRun, grows }: CodeProps) {
  const host = useRef<HTMLDivElement>(null);
  const view = useRef<EditorView | null>(null);
  const languageSlot = useRef(new Compartment());
  const readOnly = !onChange;
  const current = useRef({ onChange, onRun, complete, value });
  useEffect(() => {
    current.current = { onChange, onRun, complete, value };
  });

  useEffect(() => {
    if (!host.current) return;
    // One source for as long as the editor lives: CodeMirror drops what a source found once it is another function.
    const complete: CompletionSource = (context) => current.current.complete?.(context) ?? null;
    const completing = [{ autocomplete: complete }];
    const extensions: Extension[] = [
      lineNumbers(),
      highlightSpecialChars(),
      history(),
      drawSelection(),
      bracketMatching(),
      indentOnInput(),
      highlightSelectionMatches(),
      syntaxHighlighting(highlight),
      look,
      languageSlot.current.of([]),
      EditorView.contentAttributes.of({ "aria-label": label, tabindex: "0" }),
      keymap.of([
        { key: "Mod-Enter", run: () => (current.current.onRun?.(), true) },
        ...closeBracketsKeymap,
        ...defaultKeymap,
        ...searchKeymap,
        ...historyKeymap,
        ...completionKeymap,
        ...lintKeymap,
      ]),
    ];
    if (readOnly) extensions.push(EditorState.readOnly.of(true));
    else {
      extensions.push(
        closeBrackets(),
        highlightActiveLine(),
        highlightActiveLineGutter(),
        lintGutter(),
        autocompletion(),
        EditorState.languageData.of(() => completing),
        EditorView.updateListener.of((update) => {
          if (update.docChanged) current.current.onChange?.(update.state.doc.toString());
        }),
      );
    }
    const editor = new EditorView({ parent: host.current, state: EditorState.create({ doc: current.current.value, extensions }) });
    view.current = editor;
    return () => {
      editor.destroy();
      view.current = null;
    };
  }, [label, readOnly]);

  useEffect(() => {
    view.current?.dispatch({ effects: languageSlot.current.reconfigure(languageOf(language, tables)) });
  }, [language, tables, label, readOnly]);

  useEffect(() => {
    const editor = view.current;
    if (editor && editor.state.doc.toString() !== value) {
      editor.dispatch({ changes: { from: 0, to: editor.state.doc.length, insert: value } });
    }
  }, [value]);

  useEffect(() => {
    const editor = view.current;
    if (editor) editor.dispatch(setDiagnostics(editor.state, diagnosticsOf(editor.state, problems ?? [])));
  }, [problems]);

  return <div className={grows ? "code-editor grows" : "code-editor"} ref={host} />;
}

/** Where problems stand in a text; those without a place are not underlined. */
export function diagnosticsOf(state: EditorState, problems: readonly Problem[]): Diagnostic[] {
  return problems.flatMap(({ from, to, message, severity }) => {
    if (!from) return [];
    const start = offsetOf(state, from);
    const end = Math.max(to ? offsetOf(state, to) : start, start);
    const word = state.wordAt(start);
    return [{ from: start, to: end > start ? end : Math.max(word?.to ?? 0, Math.min(start + 1, state.doc.length)), message, severity }];
  });
}

function offsetOf(state: EditorState, { line, column }: { line: number; column: number }): number {
  const row = state.doc.line(Math.min(Math.max(line, 1), state.doc.lines));
  return row.from + Math.min(Math.max(column - 1, 0), row.length);
}
