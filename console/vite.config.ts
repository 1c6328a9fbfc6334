import react from "@vitejs/plugin-react";
import { defineConfig } from "vitest/config";

/** `npm run dev` shows the console of a `headrace serve` that runs on this machine. */
const server = process.env["HEADRACE_SERVER"] ?? "http://127.0.0.1:5115";

export default defineConfig({
  plugins: [react()],
  base: "/",
  build: {
    outDir: "../src/headrace/server/console",
    emptyOutDir: true,
    assetsInlineLimit: 0, // the server's Content-Security-Policy allows no data: scripts or fonts
    chunkSizeWarningLimit: 700,
  },
  // The server refuses what the pages of others send: here its own name is theirs.
  server: { proxy: { "/api": { target: server, changeOrigin: true, headers: { origin: server } } } },
  test: { include: ["tests/**/*.test.ts"], environment: "node" },
});
