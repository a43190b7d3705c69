// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/cohort-ml/cohort/rpc"
)

func newRPCCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "rpc",
		Short: "Look at the processes of remote calls",
		Long:  "Look at agents of package rpc from outside their processes.",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			return unknown("command", args[0], commandNames(cmd), cmd.CommandPath())
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newRPCShowCommand())
	return cmd
}

func newRPCShowCommand() *cobra.Command {
	var asJSON bool
	var pids []int
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "show ADDR...|--pid PID",
		Short: "Show the calls that an agent makes and answers",
		Long: `Ask an agent for the calls that it waits for and the calls that it answers, each
with its time; for the number of calls, failures, bytes and latencies of each
method and peer; for its references; and for its peers with their addresses.

An address is host:port, which Agent.Addr returns and rpc.WithListen chooses, or
unix:name. The agent answers a command that proves to know the job's token, in
COHORT_TOKEN or COHORT_TOKEN_FILE. On Linux, --pid finds the address and the token
of a process of the same user, such as a rank of cohort run. If the process has no
socket on which an agent listens for its own host (rpc.WithPeers makes none), the
command asks all addresses on which the process listens.`,
		Example: `  cohort rpc show 10.0.0.1:41000
  cohort rpc show --json --pid 4711`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args)+len(pids) == 0 {
				return usageError{errors.New("rpc show needs the address of an agent, or --pid with the process that has one")}
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			shown := 0
			show := func(info rpc.DebugInfo) error {
				if asJSON {
					enc := json.NewEncoder(cmd.OutOrStdout())
					enc.SetIndent("", "  ")
					return enc.Encode(info)
				}
				if shown++; shown > 1 {
					fmt.Fprintln(cmd.OutOrStdout())
				}
				return info.WriteText(cmd.OutOrStdout())
			}
			for _, addr := range args {
				info, err := rpc.DebugOf(ctx, addr, "")
				if err == nil {
					err = show(info)
				}
				if err != nil {
					return err
				}
			}
			for _, pid := range pids {
				addrs, token, err := agentsOfProcess(pid)
				var infos []rpc.DebugInfo
				if err == nil {
					infos, err = whoAnswers(ctx, addrs, token)
				}
				if err != nil {
					return fmt.Errorf("--pid %d: %w", pid, err)
				}
				for _, info := range infos {
					if err := show(info); err != nil {
						return err
					}
				}
			}
			return nil
		},
	}
	fl := cmd.Flags()
	fl.BoolVar(&asJSON, "json", false, "print one JSON object for each agent")
	fl.IntSliceVar(&pids, "pid", nil, "show the agents of the process `PID`, and use its token (Linux)")
	fl.DurationVar(&timeout, "timeout", 10*time.Second, "how long to wait for the answers")
	return cmd
}

// whoAnswers asks all addresses of a process at which an agent may listen, and returns
// the answers of the agents. After the first answer it waits one more second for the
// others: something else may listen there, such as an HTTP server, and never answer.
func whoAnswers(ctx context.Context, addrs []string, token string) ([]rpc.DebugInfo, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	infos, errs := make([]rpc.DebugInfo, len(addrs)), make([]error, len(addrs))
	answered := make(chan int, len(addrs))
	for i, addr := range addrs {
		go func() {
			infos[i], errs[i] = rpc.DebugOf(ctx, addr, token)
			answered <- i
		}()
	}
	var agents []int
	for range addrs {
		if i := <-answered; errs[i] == nil {
			if agents = append(agents, i); len(agents) == 1 {
				defer time.AfterFunc(time.Second, cancel).Stop()
			}
		}
	}
	if len(agents) == 0 {
		return nil, fmt.Errorf("no agent of package rpc answers where the process listens: %w", errors.Join(errs...))
	}
	slices.Sort(agents)
	var there []rpc.DebugInfo
	for _, i := range agents {
		there = append(there, infos[i])
	}
	return there, nil
}
