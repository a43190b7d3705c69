// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cohort-ml/cohort/dist/store"
	"github.com/cohort-ml/cohort/rpc"
	"github.com/cohort-ml/cohort/rpc/ps"
)

func newPSCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ps",
		Short: "Serve embedding tables, and look at them",
		Long: `Serve the tables of a job on parameter servers, ask the servers how they are, read
rows, and use the snapshots that the servers write.

A server has a directory. It holds a log of all pushes that the server has
acknowledged, and snapshots of its rows. A server that has ended, also by kill -9,
goes on from there when the same command starts it again.`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			return unknown("command", args[0], commandNames(cmd), cmd.CommandPath())
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newPSServeCommand(), newPSStatusCommand(), newPSCheckpointCommand(), newPSQueryCommand(), newPSExportCommand(), newPSLoadCommand())
	return cmd
}

// psServers are the flags that say where the servers of a job are.
type psServers struct {
	at      []string
	store   string
	servers int
	job     string
	timeout time.Duration
}

func (p *psServers) flags(fl *pflag.FlagSet) {
	fl.StringSliceVar(&p.at, "at", nil, "`ADDRESSES` of all servers, in the order of their numbers")
	fl.StringVar(&p.store, "store", "", "find the servers in the store at `HOST:PORT` (cohort store --wire cohort)")
	fl.IntVar(&p.servers, "servers", 0, "with --store: the number of servers")
	fl.StringVar(&p.job, "job", "", "refuse servers of another job than `NAME`")
	fl.DurationVar(&p.timeout, "timeout", 10*time.Second, "how long to wait for the servers")
}

// dial makes a client that reads. The function that it returns ends the client.
func (p *psServers) dial(ctx context.Context) (*ps.Client, func(), error) {
	switch {
	case len(p.at) > 0 && p.store != "":
		return nil, nil, usageError{errors.New("--at and --store both say where the servers are: give one")}
	case len(p.at) == 0 && p.store == "":
		return nil, nil, usageError{errors.New("say where the servers are, by --at ADDRESSES or by --store HOST:PORT --servers N")}
	case p.store != "" && p.servers < 1:
		return nil, nil, usageError{errors.New("--store needs --servers with the number of servers")}
	case p.store == "" && p.servers != 0 && p.servers != len(p.at):
		return nil, nil, usageError{fmt.Errorf("--servers is %d, and --at has %d addresses", p.servers, len(p.at))}
	}
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	var ends []func()
	end := func() {
		for i := len(ends) - 1; i >= 0; i-- {
			ends[i]()
		}
	}
	fail := func(err error) (*ps.Client, func(), error) {
		end()
		return nil, nil, err
	}
	at := ps.At(p.at...)
	if p.store != "" {
		s, err := dialPSStore(ctx, p.store)
		if err != nil {
			return fail(err)
		}
		ends = append(ends, func() { s.Close() })
		at = ps.InStore(s, p.servers)
	}
	agent, err := rpc.Init(ctx, fmt.Sprintf("ps-command-%d", os.Getpid()))
	if err != nil {
		return fail(err)
	}
	ends = append(ends, func() { agent.Close() })
	opts := []ps.Option{ps.WithTimeout(p.timeout)}
	if p.job != "" {
		opts = append(opts, ps.WithJob(p.job))
	}
	client, err := ps.Dial(ctx, agent, at, opts...)
	if err != nil {
		return fail(err)
	}
	ends = append(ends, func() { client.Close() })
	return client, end, nil
}

// dialPSStore connects to the store in which servers publish their addresses.
func dialPSStore(ctx context.Context, addr string) (*store.Client, error) {
	s, err := store.Dial(ctx, addr, "")
	if err != nil {
		return nil, fmt.Errorf("--store %s: %w", addr, err)
	}
	return s, nil
}

// tableNamesOf lists the tables that servers have.
func tableNamesOf(c *ps.Client) []string {
	var names []string
	for _, t := range c.Tables() {
		names = append(names, t.Name)
	}
	return names
}

// unknownTable is the error for a table that the servers do not have.
func unknownTable(name string, have []string) error {
	if len(have) == 0 {
		return usageError{fmt.Errorf("there is no table %q: the servers have no tables yet", name)}
	}
	return usageError{fmt.Errorf("there is no table %q%s", name, didYouMean(name, have))}
}
