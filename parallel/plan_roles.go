// SPDX-License-Identifier: Apache-2.0

package parallel

import (
	"fmt"
	"slices"
	"strings"

	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/internal/nearest"
	"github.com/cohort-ml/cohort/nn"
)

// lay finds the modules of the rules, gives them their roles, and says how parameters are cut.
func (t *tensorParallel) lay() error {
	model := base(t.model)
	modules := map[string]any{}
	var paths []string
	for path, m := range nn.Modules(model) {
		modules[path] = m
		paths = append(paths, path)
	}
	params := nn.Parameters(model)
	for i := range t.plan {
		rule := &t.plan[i]
		if err := rule.validate(); err != nil {
			return err
		}
		if err := t.apply(rule, paths, modules, params); err != nil {
			return err
		}
	}
	for _, path := range paths {
		if r := t.roles[modules[path]]; r != nil && r.rule != nil {
			if err := t.layModule(path, r); err != nil {
				return err
			}
		}
	}
	if err := t.layAdapters(paths, modules); err != nil {
		return err
	}
	nn.Parameters(t.model) // which gives the names of the whole model again
	return nil
}

// apply gives the modules or parameters that a rule matches their roles.
func (t *tensorParallel) apply(rule *Rule, paths []string, modules map[string]any, params []*nn.Parameter) error {
	found := false
	if rule.Style == styleShard {
		var names []string
		for _, p := range params {
			names = append(names, p.Name())
			if rule.matches(p.Name()) {
				found = true
				if err := t.cutAlong(rule, p.Name(), p, rule.Dim, rule.Packed, rule.In); err != nil {
					return err
				}
			}
		}
		if !found {
			return rule.absent("parameter", names)
		}
		return nil
	}
	for _, path := range paths {
		if !rule.matches(path) {
			continue
		}
		found = true
		if err := t.assign(rule, path, modules[path]); err != nil {
			return err
		}
	}
	if !found {
		return rule.absent("module", paths)
	}
	return nil
}

// absent says that a rule matches nothing.
func (r *Rule) absent(what string, names []string) error {
	slices.Sort(names)
	close := nearest.Name(strings.ReplaceAll(r.Pattern, "*", "0"), names)
	if close == "" {
		close = nearest.Name(r.Pattern, names)
	}
	hint := fmt.Sprintf("look at the paths that nn.Modules gives, such as %s", listOr(firstFew(names), "that of the model, a dot"))
	if close != "" {
		hint = fmt.Sprintf("did you mean %s?", close)
	}
	return r.wrong("the model has no %s %s: %s", what, r.Pattern, hint)
}

// firstFew returns some of the names.
func firstFew(names []string) []string {
	names = slices.DeleteFunc(slices.Clone(names), func(n string) bool { return n == "" })
	return names[:min(3, len(names))]
}

// assign gives a module the role of a rule.
func (t *tensorParallel) assign(rule *Rule, path string, module any) error {
	if !callable(module) {
		return rule.wrong("%s is a %T, which is not called as a module: name the modules within it", where(path), module)
	}
	r := t.roles[module]
	if r == nil {
		r = &role{path: where(path), module: module}
		t.roles[module] = r
	}
	switch rule.Style {
	case styleInput:
		r.inputs = append(r.inputs, rule)
		return nil
	case styleOutput:
		r.gives = append(r.gives, rule)
		return nil
	case styleLogits:
		r.logits = rule
		return nil
	}
	if old := r.rule; old != nil && !old.same(rule) {
		return rule.wrong("%s matches the rule %q of line %d too: a module has one style", where(path), old, old.Line)
	}
	r.rule = rule
	return nil
}

// same reports whether two rules say the same of a module.
func (r *Rule) same(o *Rule) bool {
	a, b := *r, *o
	a.Pattern, b.Pattern, a.Line, b.Line = "", "", 0, 0
	return a == b
}

// where names a path in an error.
func where(path string) string {
	if path == "" {
		return "the model"
	}
	return path
}

// layModule says how the parameters of a module are cut by its style.
func (t *tensorParallel) layModule(path string, r *role) error {
	rule := r.rule
	cannot := func(takes string) error {
		return rule.wrong("%s is a %T, and the style %s is for %s", where(path), r.module, rule.Style, takes)
	}
	switch rule.Style {
	case styleColumn, styleRow:
		m, ok := r.module.(nn.Projection)
		if !ok {
			return cannot("linear layers (nn.Projection), such as *nn.Linear: write \"shard\" for parameters, and \"input\" and \"output\" for what the module takes and gives")
		}
		return t.layProjection(path, r, m)
	case styleVocabulary, styleWidth:
		m, ok := r.module.(*nn.Embedding)
		if !ok {
			return cannot("*nn.Embedding")
		}
		return t.layEmbedding(path, r, m)
	case styleExperts:
		m, ok := r.module.(*nn.Experts)
		if !ok {
			return cannot("*nn.Experts")
		}
		return t.layExperts(path, r, m)
	case styleHeads:
		switch m := r.module.(type) {
		case *nn.DotProductAttention:
			return nil
		case *nn.MultiheadAttention:
			return t.layAttention(path, r, m)
		case *nn.RMSNorm: // of the channels of each head: whole, and each rank has the gradient of its heads
			for _, p := range ownParameters(m) {
				t.layOf(p).owes[tensorAxis] = true
			}
			return nil
		}
		return cannot("*nn.MultiheadAttention, *nn.DotProductAttention and *nn.RMSNorm")
	case styleSequence, styleCut:
		for _, p := range ownParameters(r.module) {
			if rule.Style == styleSequence && !t.sequences {
				continue
			}
			t.layOf(p).owes[tensorAxis] = true
		}
	}
	return nil
}

// layOf returns how a parameter lies.
func (t *tensorParallel) layOf(p *nn.Parameter) *lay {
	l := t.lays[p]
	if l.at == nil {
		l.at = map[string]mesh.Placement{}
	}
	if l.owes == nil {
		l.owes = map[string]bool{}
	}
	return l
}

// ownParameters returns the parameters of a module, and of those within it, each once.
func ownParameters(module any) []*nn.Parameter {
	var own []*nn.Parameter
	for _, p := range nn.Uses(module) {
		if !slices.Contains(own, p) {
			own = append(own, p)
		}
	}
	return own
}

// layProjection cuts a linear layer.
func (t *tensorParallel) layProjection(path string, r *role, m nn.Projection) error {
	rule := r.rule
	weight, inFirst := m.Matrix()
	r.weight = weight
	in, out := 1, 0
	if inFirst {
		in, out = 0, 1
	}
	for _, p := range ownParameters(m) {
		switch shape := t.layOf(p).shape; {
		case p == weight:
		case r.bias == nil && len(shape) == 1 && shape[0] == t.layOf(weight).shape[out]:
			r.bias = p
		default:
			return rule.wrong("%s has the parameter %s of shape %v beside its matrix and its bias, and the style %s does not know how it is used", where(path), p.Name(), shape, rule.Style)
		}
	}
	dim := out
	if rule.Style == styleRow {
		dim = in
	}
	r.channels = t.layOf(weight).shape[out]
	if err := t.cutAlong(rule, path, weight, dim, rule.Packed, rule.In); err != nil {
		return err
	}
	switch {
	case r.bias == nil:
	case rule.Style == styleColumn:
		return t.cutAlong(rule, path, r.bias, 0, rule.Packed, rule.In)
	default:
		t.parts[r.bias] = true
	}
	return nil
}

// layEmbedding cuts a table along its rows or its columns.
func (t *tensorParallel) layEmbedding(path string, r *role, m *nn.Embedding) error {
	r.weight = m.Weight
	if m.Weight.Sparse && !m.Weight.Frozen {
		return r.rule.wrong("%s takes its gradient by rows (nn.Parameter.Sparse), which cannot be cut: make it dense", where(path))
	}
	if r.rule.Style == styleWidth {
		r.channels = t.layOf(m.Weight).shape[1]
		return t.cutAlong(r.rule, path, m.Weight, 1, 0, 0)
	}
	rows := t.layOf(m.Weight).shape[0]
	if _, last := t.partOf(t.size-1, rows); last == 0 && rows >= t.size {
		_, each := t.partOf(0, rows)
		have := (rows + each - 1) / each
		return r.rule.wrong("%s has %d rows for %d ranks of axis tp, and the last has none: %d ranks of %d rows have all: %d × %d ≥ %d: choose tp %d, or pad the table to a multiple of %d", where(path), rows, t.size, have, each, have, each, rows, have, t.size)
	}
	t.tables[m.Weight] = rows
	if m.PaddingIdx != nil {
		// The module counts within its part from now on.
		first, n := t.part(rows)
		at := *m.PaddingIdx - first
		m.PaddingIdx = nil
		if at >= 0 && at < n {
			m.PaddingIdx = &at
		}
	}
	return t.cutAlong(r.rule, path, m.Weight, 0, 0, 0)
}

// layExperts cuts the hidden channels of experts.
func (t *tensorParallel) layExperts(path string, r *role, m *nn.Experts) error {
	for _, cut := range []struct {
		p   *nn.Parameter
		dim int
	}{{m.Gate, 1}, {m.GateBias, 1}, {m.Up, 1}, {m.UpBias, 1}, {m.Down, 2}} {
		if cut.p == nil {
			continue
		}
		if err := t.cutAlong(r.rule, path, cut.p, cut.dim, 0, 0); err != nil {
			return err
		}
	}
	if m.DownBias != nil {
		t.parts[m.DownBias] = true
	}
	return nil
}

// layAttention cuts the projection of queries, keys and values between heads.
func (t *tensorParallel) layAttention(path string, r *role, m *nn.MultiheadAttention) error {
	if o := t.roles[m.OutProj]; o == nil || o.rule == nil || o.rule.Style != styleRow {
		return r.rule.wrong("%s is cut by heads, so its out_proj takes a part of them: add the rule \"%s.out_proj: row\"", where(path), path)
	}
	if err := t.cutAlong(r.rule, path, m.InProjWeight, 0, 3, m.NumHeads); err != nil || m.InProjBias == nil {
		return err
	}
	return t.cutAlong(r.rule, path, m.InProjBias, 0, 3, m.NumHeads)
}

// cutAlong says that tp cuts a dim of a parameter, of packed parts, between pieces.
func (t *tensorParallel) cutAlong(rule *Rule, path string, p *nn.Parameter, dim, packed, pieces int) error {
	l := t.layOf(p)
	packed = max(packed, 1)
	name := p.Name()
	if dim >= len(l.shape) {
		return rule.wrong("%s has the shape %v, and no dim %d", name, l.shape, dim)
	}
	size := l.shape[dim]
	switch {
	case size%packed != 0:
		return rule.wrong("dim %d of %s is not %d parts of one size: %d %% %d = %d", dim, name, packed, size, packed, size%packed)
	case pieces > 0 && (size/packed)%pieces != 0:
		return rule.wrong("dim %d of %s is not %d pieces of one size: %d %% %d = %d", dim, name, pieces, size/packed, pieces, (size/packed)%pieces)
	case pieces > 0 && pieces%t.size != 0:
		return rule.wrong("the %d ranks of axis tp cannot share %d pieces (heads) of %s equally: %d %% %d = %d: choose a tp that divides %d", t.size, pieces, where(path), pieces, t.size, pieces%t.size, pieces)
	case size/packed < t.size:
		return rule.wrong("dim %d of %s has %d elements for %d ranks of axis tp: %d < %d: choose a smaller tp, or leave the rule out", dim, name, size/packed, t.size, size/packed, t.size)
	}
	at := mesh.StridedShard(dim, packed)
	if old, cut := l.at[tensorAxis]; cut && old != at {
		return rule.wrong("%s of %s is cut as %v by another rule, and would be cut as %v: a parameter that modules share is cut in one way", name, where(path), old, at)
	}
	l.at[tensorAxis] = at
	if !slices.Contains(t.widths, size) && packed == 1 {
		t.widths = append(t.widths, size)
	}
	return nil
}

// layAdapters cuts the matrices that a LoRA has beside the projections of the plan.
func (t *tensorParallel) layAdapters(paths []string, modules map[string]any) error {
	l, ok := t.model.(*nn.LoRA)
	if !ok {
		return nil
	}
	added := map[string]*nn.Parameter{}
	for _, a := range l.Added {
		added[a.Name] = a.Parameter
	}
	for _, path := range paths {
		r := t.roles[modules[path]]
		name := "base_model.model." + path
		a, b := added[name+".lora_A.weight"], added[name+".lora_B.weight"]
		if a == nil || r == nil || r.rule == nil {
			continue
		}
		switch rule := r.rule; rule.Style {
		case styleColumn:
			t.layOf(a).owes[tensorAxis] = true
			if err := t.cutAlong(rule, path, b, 0, rule.Packed, rule.In); err != nil {
				return err
			}
		case styleRow:
			if l.Options.Dropout > 0 {
				return rule.wrong("the LoRA beside %s drops out inputs that are cut, and its mask would not be one rank's: set LoRAOptions.Dropout to 0, or adapt other projections", path)
			}
			t.layOf(b).owes[tensorAxis] = true
			if err := t.cutAlong(rule, path, a, 1, rule.Packed, rule.In); err != nil {
				return err
			}
		default: // sequence
			t.layOf(a).owes[tensorAxis], t.layOf(b).owes[tensorAxis] = true, true
		}
	}
	return nil
}
