import { defineConfig } from "vitest/config";

/** Tests in a real Chromium against a real server; tests/servers/test_console.py starts both. */
export default defineConfig({
  test: {
    include: ["browser/**/*.test.ts"],
    environment: "node",
    fileParallelism: false,
    bail: 1,
    testTimeout: 300_000,
    hookTimeout: 120_000,
  },
});
