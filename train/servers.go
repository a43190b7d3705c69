// SPDX-License-Identifier: Apache-2.0

package train

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/internal/transport"
	"github.com/cohort-ml/cohort/rpc"
	"github.com/cohort-ml/cohort/rpc/ps"
	"github.com/cohort-ml/cohort/rpc/ps/rows"
)

// ServerConfig has the settings of a run whose tables lie on parameter servers.
type ServerConfig struct {
	PS        int      `json:"ps" run:"here" group:"Parameter servers" usage:"have {N} parameter servers hold the tables, started beside rank 0; 0: each rank has the tables"`
	PSAt      []string `json:"ps_at" flag:"ps-at" run:"here" usage:"{ADDRESSES} of servers that run already (cohort ps serve), in the order of their numbers; their token is that of COHORT_TOKEN"`
	Staleness int      `json:"staleness" run:"here" usage:"with servers: steps that the rows of a pull may be behind; from 1 on, rows are pulled during the step before; 0: none, the run computes what it computes without servers"`
	Sees      string   `json:"ps_consistency" flag:"ps-consistency" run:"here" usage:"with servers: the {CONSISTENCY} of a pull: synchronous, bounded:STEPS (as --staleness) or asynchronous; behind the last two ,batch:K or ,batch:K:mean lets servers apply the sum or mean of K pushes at once; default: by --staleness"`

	Layers bool `json:"ps_layers" flag:"ps-layers" run:"here" usage:"with servers: they hold the layers too, whose gradients the ranks push in place of averaging them"`

	StartServers StartServers `json:"-"` // of rank 0

	patience time.Duration // with a server that does not answer; 0: ps.DefaultTimeout

	ahead int // batches whose rows are asked for ahead; 0: one, with Staleness
}

// StartServers starts the parameter servers of a run and keeps them: a server that dies is
// started again, with what it had. stop ends them. They end with this process, too.
type StartServers func(ctx context.Context, o ServersOptions) (addrs []string, stop func() error, err error)

// ServersOptions says which servers [StartServers] starts.
type ServersOptions struct {
	Count  int
	Host   string // at which the ranks reach them
	Token  string // that clients must know
	Notice func(text string)
}

// hasServers says whether the tables lie on servers.
func (c ServerConfig) hasServers() bool { return c.PS > 0 || len(c.PSAt) > 0 }

// consistency is what a pull sees of the pushes of other ranks.
func (c ServerConfig) consistency() ps.Consistency {
	if sees, err := ps.ParseConsistency(c.Sees); c.Sees != "" && err == nil {
		return sees
	}
	if c.Staleness > 0 {
		return ps.Bounded(c.Staleness)
	}
	return ps.Synchronous()
}

// looksAhead says whether rows are pulled during the step before, and so lack its pushes.
func (c ServerConfig) looksAhead() bool {
	sees := c.consistency()
	return c.hasServers() && (sees.Mode == ps.ModeAsynchronous || sees.Bound > 0)
}

// validateConsistency reports what is wrong with what a pull sees. ranks are 0 if nobody knows
// how many there are.
func (c ServerConfig) validateConsistency(ranks int) error {
	if c.Sees == "" {
		return nil
	}
	sees, err := ps.ParseConsistency(c.Sees)
	switch {
	case err != nil:
		return fmt.Errorf("train rec: --ps-consistency: %w", err)
	case c.Staleness > 0:
		return fmt.Errorf("train rec: --staleness %d is --ps-consistency bounded:%d, and --ps-consistency is %s: leave one of them out", c.Staleness, c.Staleness, c.Sees)
	case sees.Batch > 0 && ranks > 0 && ranks%sees.Batch != 0:
		// After a step, pushes would wait for a batch, and an evaluation or a checkpoint would
		// lack them.
		return fmt.Errorf("train rec: --ps-consistency %s has batches of %d pushes, which the pushes of %d ranks do not fill: want a number that divides the number of ranks", c.Sees, sees.Batch, ranks)
	}
	return nil
}

// validateServers reports the first of these settings that makes no sense, and others of a
// run that do not go with servers.
func (c RecConfig) validateServers() error {
	if err := checkWholes("rec", []whole{{"ps", c.PS, 0, 1024}, {"staleness", c.Staleness, 0, 1000}}); err != nil {
		return err
	}
	if !c.hasServers() {
		for flag, is := range map[string]bool{"staleness": c.Staleness > 0, "ps-consistency": c.Sees != "", "ps-layers": c.Layers} {
			if is {
				return fmt.Errorf("train rec: --%s is about parameter servers: give --ps or --ps-at too, or leave it out", flag)
			}
		}
		return nil
	}
	if err := c.validateConsistency(c.Ranks); err != nil {
		return err
	}
	if c.PS > 0 && len(c.PSAt) > 0 {
		return errors.New("train rec: --ps starts servers, and --ps-at names servers that run already: leave one of them out")
	}
	for i, addr := range c.PSAt {
		if _, _, err := net.SplitHostPort(addr); err != nil && !strings.Contains(addr, "://") {
			return fmt.Errorf("train rec: --ps-at: address %d is %q, want HOST:PORT as cohort ps serve prints it", i+1, addr)
		}
		if slices.Contains(c.PSAt[:i], addr) {
			return fmt.Errorf("train rec: --ps-at has %s twice: give each server once, in the order of their numbers", addr)
		}
	}
	for _, no := range []struct {
		is        bool
		flag, why string
	}{
		{c.FSDP > 1, "--fsdp", "splits the layers among ranks, which is not done beside servers"},
		{c.DiLoCo > 0, "--diloco", "averages the weights of islands, and the rows of servers are not among them"},
		{c.Clip > 0, "--clip", "needs the gradients of all rows at one place, and servers have them in parts"},
		{c.Prove, "--prove", "does a step again in another process, which would change the rows of the servers"},
		{c.InitFrom != "", "--init-from", "gives weights to a model that lies in the ranks"},
		{c.Layers && c.ZeRO1, "--zero1", "divides the state of the optimizer among the ranks, and with --ps-layers the servers have it"},
		{c.Layers && c.Hook != "", "--hook", "says how ranks average gradients, and with --ps-layers they push them"},
	} {
		if no.is {
			return fmt.Errorf("train rec: %s %s: leave %s out, or the servers (--ps, --ps-at)", no.flag, no.why, no.flag)
		}
	}
	return nil
}

// openServers makes this rank a worker of the servers, which rank 0 starts if the settings do
// not name running ones. All ranks call it. closing ends all that it has made.
func (c ServerConfig) openServers(ctx context.Context, group *dist.Group, tables []rows.Schema, notice func(string)) (client *ps.Client, closing func(failed bool) error, err error) {
	var ends []func(failed bool) error
	closing = func(failed bool) error {
		var errs []error
		for _, end := range slices.Backward(ends) {
			errs = append(errs, end(failed))
		}
		ends = nil
		return errors.Join(errs...)
	}
	defer func() {
		if err != nil {
			_ = closing(true)
		}
	}()
	var at struct {
		Addrs      []string
		Token, Err string
	}
	if at.Addrs = c.PSAt; c.PS > 0 && group.Rank() == 0 {
		at.Token = transport.NewToken().Text()
		var stop func() error
		if c.StartServers == nil {
			err = errors.New("this program cannot start parameter servers (RecConfig.StartServers): name running ones")
		} else {
			at.Addrs, stop, err = c.StartServers(ctx, ServersOptions{Count: c.PS, Host: serversHost(group), Token: at.Token, Notice: notice})
		}
		if err != nil {
			at.Err = err.Error()
		} else {
			ends = append(ends, func(bool) error { return stop() })
		}
	}
	if c.PS > 0 {
		var told error
		if at, told = dist.BroadcastObject(ctx, group, at, 0); told != nil {
			return nil, nil, told
		}
		if err != nil {
			return nil, nil, err
		}
		if at.Err != "" {
			return nil, nil, fmt.Errorf("rank 0: %s", at.Err)
		}
	}
	client, end, err := c.dial(ctx, group, at.Addrs, at.Token, tables)
	if end != nil {
		ends = append(ends, end)
	}
	if err := together(ctx, group, err); err != nil {
		return nil, nil, err
	}
	return client, closing, nil
}

// dial makes the client of this rank.
func (c ServerConfig) dial(ctx context.Context, group *dist.Group, addrs []string, token string, tables []rows.Schema) (*ps.Client, func(failed bool) error, error) {
	var opts []rpc.Option
	if token != "" {
		opts = append(opts, rpc.WithToken(token))
	}
	name := fmt.Sprintf("rank%d", group.Rank())
	agent, err := rpc.Init(ctx, name, opts...)
	if err != nil {
		return nil, nil, err
	}
	client, err := ps.Dial(ctx, agent, ps.At(addrs...), ps.WithTables(tables...), ps.WithWorker(group.Rank(), group.Size(), c.consistency()),
		ps.WithTimeout(cmp.Or(c.patience, ps.DefaultTimeout)))
	if err != nil {
		return nil, func(bool) error { return agent.Close() }, err
	}
	return client, func(failed bool) error {
		if !failed { // the servers have all that was pushed
			return errors.Join(client.Close(), agent.Close())
		}
		_ = agent.Close() // nobody waits for the servers
		_ = client.Close()
		return nil
	}, nil
}

// together returns the same on all ranks: nil if no rank has an error, its own error to a rank
// that has one, and to others that of the first rank that has.
func together(ctx context.Context, group *dist.Group, err error) error {
	text := ""
	if err != nil {
		text = err.Error()
	}
	texts, told := dist.AllGatherObject(ctx, group, text)
	switch {
	case err != nil:
		return err
	case told != nil:
		return told
	}
	for rank, text := range texts {
		if text != "" {
			return fmt.Errorf("rank %d: %s", rank, text)
		}
	}
	return nil
}

// serversHost returns the address of this machine at which the ranks reach servers on it.
func serversHost(group *dist.Group) string {
	const local = "127.0.0.1"
	nodes := group.Nodes()
	if !slices.ContainsFunc(nodes, func(n string) bool { return n == "" || n != nodes[0] }) || group.Size() == 1 {
		return local
	}
	// "eth0 10.0.0.3 (route to 10.0.0.1:29500)"
	if words := strings.Fields(group.Interface()); len(words) > 1 && net.ParseIP(words[1]) != nil {
		return words[1]
	}
	return local
}
