import { afterAll, beforeAll, expect, test } from "vitest";
import { expectAccessible, openBrowser, SERVER, type Browser } from "./browser";

let browser: Browser;

beforeAll(async () => {
  browser = await openBrowser();
});
afterAll(() => browser.close());

test("a server with a token is entered with it, and left again", async () => {
  const { page, complaints } = browser;
  await page.goto(`${SERVER}/pipelines`);
  await page.getByLabel("Access token").fill("a token that is wrong");
  await expectAccessible(page);
  await page.getByRole("button", { name: "Sign in" }).click();
  await page.getByRole("alert").waitFor();
  await page.getByLabel("Access token").fill(process.env["HEADRACE_TOKEN"] ?? "");
  await page.getByRole("button", { name: "Sign in" }).click();
  await page.getByRole("heading", { name: "Pipelines", exact: true }).waitFor();
  // A change needs the header that goes with the session.
  await page.goto(`${SERVER}/connections/new?connector=impulse`);
  await page.getByLabel(/^Name/).first().fill("pulses");
  const rate = page.getByLabel(/^Event rate/);
  if (!(await rate.isVisible())) await page.getByText(/more options$/).first().click();
  await rate.fill("10");
  await page.getByRole("button", { name: "Create" }).click();
  await page.getByRole("button", { name: "pulses", exact: true }).waitFor();
  await page.getByRole("button", { name: /Sign out/ }).click();
  await page.getByLabel("Access token").waitFor();
  expect(complaints).toEqual([]);
});
