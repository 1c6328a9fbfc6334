import { get, post, remove } from "./client";

/** Who asks, and what they may: a viewer looks, an operator starts and stops, an author also lets code run. */
export interface Session {
  user: string;
  role: "viewer" | "operator" | "author";
  sign_in_required: boolean;
}

export function fetchSession(): Promise<Session> {
  return get<Session>("/session");
}

export function signIn(token: string): Promise<Session> {
  return post<Session>("/session", { token });
}

export function signOut(): Promise<unknown> {
  return remove("/session");
}

/** A server without users lets everybody on its machine in; nobody has signed in there. */
export function canSignOut(session: Session): boolean {
  return session.user !== "local" && session.user !== "nobody";
}
