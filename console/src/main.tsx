import { QueryClient, QueryClientProvider } from "@tanstack/react-query";
import { StrictMode } from "react";
import { createRoot } from "react-dom/client";
import { ApiError } from "./api/client";
import { App } from "./app";
import { applyTheme } from "./ui/theme";
import { ToastProvider } from "./ui/toasts";
import "./styles/tokens.css";
import "./styles/base.css";
import "./styles/parts.css";
import "./styles/pages.css";

applyTheme();

const client = new QueryClient({
  defaultOptions: {
    queries: {
      staleTime: 1000,
      // What the server refuses, it refuses again; a lost line may be back at the next poll.
      retry: (count, error) => count < 2 && error instanceof ApiError && error.status >= 500,
      networkMode: "always",
    },
    mutations: { networkMode: "always" },
  },
});

const root = document.getElementById("root");
if (root) {
  createRoot(root).render(
    <StrictMode>
      <QueryClientProvider client={client}>
        <ToastProvider>
          <App />
        </ToastProvider>
      </QueryClientProvider>
    </StrictMode>,
  );
}
