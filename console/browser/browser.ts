/** A Chromium that looks at a running server, with what the tests need to look at a page. */

import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { chromium, type BrowserContext, type Page } from "playwright-core";
import { expect } from "vitest";

export const SERVER = needed("HEADRACE_URL");
const PICTURES = process.env["HEADRACE_PICTURES"] ?? "";
const PATIENCE = 120_000;

const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");

function needed(name: string): string {
  const value = process.env[name];
  if (!value) throw new Error(`${name} is not set: run these tests with pytest tests/servers/test_console.py`);
  return value;
}

export interface Browser {
  page: Page;
  context: BrowserContext;
  /** Mistakes of scripts, and requests to any other host. */
  complaints: string[];
  close: () => Promise<void>;
}

export async function openBrowser(): Promise<Browser> {
  const profile = await mkdtemp(join(tmpdir(), "headrace-chromium-"));
  const context = await chromium.launchPersistentContext(profile, {
    executablePath: needed("HEADRACE_CHROMIUM"),
    headless: true,
    viewport: { width: 1280, height: 800 },
    colorScheme: "light",
    args: [
      "--no-sandbox",
      "--disable-gpu",
      "--disable-quic",
      "--no-first-run",
      "--disable-background-networking",
      "--disable-component-update",
      "--disable-sync",
    ],
  });
  const page = context.pages()[0] ?? (await context.newPage());
  page.setDefaultTimeout(PATIENCE);
  const complaints: string[] = [];
  const host = new URL(SERVER).host;
  page.on("pageerror", (error) => complaints.push(`script: ${error.message}`));
  page.on("request", (request) => {
    const url = new URL(request.url());
    if (url.protocol.startsWith("http") && url.host !== host) complaints.push(`another host: ${request.url()}`);
  });
  page.on("console", (message) => {
    // What the Content-Security-Policy refuses is only told here.
    if (message.type() === "error" && /Content Security Policy|Refused to/.test(message.text())) {
      complaints.push(`policy: ${message.text()}`);
    }
  });
  return {
    page,
    context,
    complaints,
    close: async () => {
      await context.close();
      await rm(profile, { recursive: true, force: true });
    },
  };
}

interface AxeResult {
  violations: { id: string; help: string; nodes: { html: string; failureSummary?: string }[] }[];
}

/** No rule of WCAG 2.1 A and AA is violated, as far as axe can tell. */
export async function expectAccessible(page: Page): Promise<void> {
  await page.evaluate(AXE);
  const result = await page.evaluate<AxeResult>(
    `axe.run(document, { runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"] })`,
  );
  const found = result.violations.map(
    ({ id, help, nodes }) => `${id}: ${help}\n  ${nodes.slice(0, 3).map((node) => `${node.html}\n  ${node.failureSummary ?? ""}`).join("\n  ")}`,
  );
  expect(found.join("\n"), `accessibility of ${page.url()}`).toBe("");
}

/** A picture for the docs, if they are asked for. */
export async function picture(page: Page, name: string): Promise<void> {
  if (PICTURES !== "") await page.screenshot({ path: join(PICTURES, `${name}.png`) });
}

/** Replaces the text of an editor; what it completes by itself is not in the way. */
export async function write(page: Page, label: string, text: string): Promise<void> {
  const editor = page.getByRole("textbox", { name: label, exact: true });
  await editor.focus();
  await page.keyboard.press("Control+a");
  await page.keyboard.insertText(text);
}
