// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/cohort-ml/cohort/rpc"
)

func newRPCCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "rpc",
		Short: "Look at processes that call each other",
		Long:  "Rpc has what there is to see of the agents of package rpc from outside.",
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
		Short: "Show the calls of an agent: those in flight, and how many there were of which",
		Long: `Show asks an agent for the calls that it waits for and those that it answers, with
their time; for each method and peer the number of calls, failures, bytes and
latencies; its references; and its peers with their addresses.

An address is host:port, which Agent.Addr returns and rpc.WithListen chooses, or
unix:name. The agent takes who proves the job's token, which is in COHORT_TOKEN or
COHORT_TOKEN_FILE. On Linux --pid finds both with a process of the same user: a rank
of cohort run, say.`,
		Example: `  cohort rpc show 10.0.0.1:41000
  cohort rpc show --json --pid 4711`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args)+len(pids) == 0 {
				return usageError{errors.New("rpc show needs the address of an agent, or --pid with the process that has one")}
			}
			type target struct{ addr, token string }
			var targets []target
			for _, addr := range args {
				targets = append(targets, target{addr, ""})
			}
			for _, pid := range pids {
				addrs, token, err := agentsOfProcess(pid)
				if err != nil {
					return fmt.Errorf("--pid %d: %w", pid, err)
				}
				for _, addr := range addrs {
					targets = append(targets, target{addr, token})
				}
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), timeout)
			defer cancel()
			for i, to := range targets {
				info, err := rpc.DebugOf(ctx, to.addr, to.token)
				if err != nil {
					return err
				}
				if asJSON {
					enc := json.NewEncoder(cmd.OutOrStdout())
					enc.SetIndent("", "  ")
					err = enc.Encode(info)
				} else {
					if i > 0 {
						fmt.Fprintln(cmd.OutOrStdout())
					}
					err = info.WriteText(cmd.OutOrStdout())
				}
				if err != nil {
					return err
				}
			}
			return nil
		},
	}
	fl := cmd.Flags()
	fl.BoolVar(&asJSON, "json", false, "print JSON, an object for each agent")
	fl.IntSliceVar(&pids, "pid", nil, "look for the agents of the process `PID`, and for its token (Linux)")
	fl.DurationVar(&timeout, "timeout", 10*time.Second, "`time` that the answers may take")
	return cmd
}
