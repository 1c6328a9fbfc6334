import { useQuery, useQueryClient } from "@tanstack/react-query";
import { lazy, Suspense, useEffect, type ReactNode } from "react";
import { Link, Route, Switch, useLocation } from "wouter";
import { onSignedOut } from "./api/client";
import { canSignOut, fetchSession, signOut, type Session } from "./api/session";
import { Login } from "./pages/login";
import { PipelinesPage } from "./pages/pipelines";
import { Icon, Logo, type IconName } from "./ui/icons";
import { ErrorNotice, Loading } from "./ui/parts";
import { toggleTheme, useTheme } from "./ui/theme";

const PipelinePage = lazy(() => import("./pages/pipeline"));
const EditorPage = lazy(() => import("./pages/editor"));
const ConnectionsPage = lazy(() => import("./pages/connections"));
const NewConnectionPage = lazy(() => import("./pages/connections/wizard"));
const FunctionsPage = lazy(() => import("./pages/functions"));
const ClusterPage = lazy(() => import("./pages/cluster"));

const PAGES: { path: string; label: string; icon: IconName }[] = [
  { path: "/pipelines", label: "Pipelines", icon: "pipelines" },
  { path: "/connections", label: "Connections", icon: "connections" },
  { path: "/functions", label: "Functions", icon: "functions" },
  { path: "/cluster", label: "Cluster", icon: "cluster" },
];

export function App() {
  const client = useQueryClient();
  const session = useQuery({ queryKey: ["session"], queryFn: fetchSession, refetchInterval: 5000 });
  useEffect(() => onSignedOut(() => void client.invalidateQueries({ queryKey: ["session"] })), [client]);
  if (!session.data) {
    return session.error ? (
      <main className="page">
        <ErrorNotice error={session.error} retry={() => void session.refetch()} />
      </main>
    ) : (
      <Loading what="Connecting" />
    );
  }
  if (session.data.sign_in_required) return <Login onDone={() => void client.resetQueries()} />;
  return (
    <Frame session={session.data} offline={session.isError}>
      <Suspense fallback={<Loading />}>
        <Switch>
          <Route path="/">
            <PipelinesPage />
          </Route>
          <Route path="/pipelines">
            <PipelinesPage />
          </Route>
          <Route path="/pipelines/new">
            <EditorPage />
          </Route>
          <Route path="/pipelines/:id/:tab?">{({ id, tab }) => <PipelinePage key={id} id={id} tab={tab} />}</Route>
          <Route path="/connections">
            <ConnectionsPage />
          </Route>
          <Route path="/connections/new">
            <NewConnectionPage />
          </Route>
          <Route path="/functions">
            <FunctionsPage />
          </Route>
          <Route path="/cluster">
            <ClusterPage />
          </Route>
          <Route>
            <div className="page">
              <h1>There is no such page</h1>
              <Link href="/pipelines">To the pipelines</Link>
            </div>
          </Route>
        </Switch>
      </Suspense>
    </Frame>
  );
}

function Frame({ session, offline, children }: { session: Session; offline: boolean; children: ReactNode }) {
  const [location] = useLocation();
  const client = useQueryClient();
  const theme = useTheme();
  useEffect(() => {
    const page = PAGES.find(({ path }) => location.startsWith(path));
    document.title = page ? `${page.label} · Headrace` : "Headrace";
  }, [location]);
  return (
    <div className="frame">
      <a className="skip" href="#content">
        Skip to the content
      </a>
      <nav className="nav" aria-label="Pages">
        <Link href="/pipelines" className="brand">
          <Logo />
          Headrace
        </Link>
        {PAGES.map(({ path, label, icon }) => {
          const here = location.startsWith(path) || (location === "/" && path === "/pipelines");
          return (
            <Link key={path} href={path} className="item" aria-current={here ? "page" : undefined}>
              <Icon name={icon} />
              {label}
            </Link>
          );
        })}
        <div className="foot">
          <button type="button" className="item" onClick={toggleTheme}>
            <Icon name={theme === "dark" ? "sun" : "moon"} />
            {theme === "dark" ? "Light colours" : "Dark colours"}
          </button>
          {canSignOut(session) && (
            <button type="button" className="item" onClick={() => void signOut().then(() => client.resetQueries())}>
              <Icon name="leave" />
              Sign out {session.user}
            </button>
          )}
        </div>
      </nav>
      <main className="main" id="content" tabIndex={-1}>
        {offline && (
          <div className="offline" role="alert">
            <span className="spinner" aria-hidden="true" />
            The server cannot be reached. What you see may be old; trying again every few seconds.
          </div>
        )}
        {children}
      </main>
    </div>
  );
}
