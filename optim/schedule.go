// SPDX-License-Identifier: Apache-2.0

package optim

import (
	"math"
	"slices"
	"sort"
)

// Schedule returns the learning rate of a step, counted from 0, for a group
// whose base learning rate is base. It is a pure function: a run that resumes
// goes on with the same rates.
//
// The functions below have the names, arguments and values of PyTorch's
// torch.optim.lr_scheduler in their closed forms; PyTorch multiplies the last
// rate and differs in the last bits. They panic with a *tensor.Error for
// arguments that make no sense. Steps before 0 count as 0.
type Schedule func(step int, base float64) float64

// Apply sets the learning rate of each group of opt for a step.
func (s Schedule) Apply(opt Optimizer, step int) {
	for _, g := range opt.Groups() {
		g.SetLR(s(step, g.BaseLR()))
	}
}

// factor is a schedule that multiplies the base.
func factor(f func(step int) float64) Schedule {
	return func(step int, base float64) float64 { return base * f(max(step, 0)) }
}

// ConstantLR multiplies by f for totalIters steps, in [0, 1].
func ConstantLR(f float64, totalIters int) Schedule {
	c := checks{op: "constant lr"}
	c.want(f >= 0 && f <= 1, "factor is %v: it must be in [0, 1]", f)
	c.want(totalIters >= 0, "totalIters is %d: it must not be negative", totalIters)
	c.end()
	return factor(func(step int) float64 {
		if step < totalIters {
			return f
		}
		return 1
	})
}

// StepLR multiplies by gamma every stepSize steps.
func StepLR(stepSize int, gamma float64) Schedule {
	c := checks{op: "step lr"}
	c.positive("stepSize", stepSize)
	c.notNegative("gamma", gamma)
	c.end()
	return factor(func(step int) float64 { return math.Pow(gamma, float64(step/stepSize)) })
}

// MultiStepLR multiplies by gamma at each of the milestones, in any order.
func MultiStepLR(milestones []int, gamma float64) Schedule {
	c := checks{op: "multi step lr"}
	c.notNegative("gamma", gamma)
	c.end()
	at := slices.Sorted(slices.Values(milestones))
	return factor(func(step int) float64 { return math.Pow(gamma, float64(sort.SearchInts(at, step+1))) })
}

// ExponentialLR multiplies by gamma every step.
func ExponentialLR(gamma float64) Schedule {
	c := checks{op: "exponential lr"}
	c.notNegative("gamma", gamma)
	c.end()
	return factor(func(step int) float64 { return math.Pow(gamma, float64(step)) })
}

// LinearLR goes from startFactor, in (0, 1], to endFactor, in [0, 1], over
// totalIters steps: a warm-up, with endFactor 1.
func LinearLR(startFactor, endFactor float64, totalIters int) Schedule {
	c := checks{op: "linear lr"}
	c.want(startFactor > 0 && startFactor <= 1, "startFactor is %v: it must be in (0, 1]", startFactor)
	c.want(endFactor >= 0 && endFactor <= 1, "endFactor is %v: it must be in [0, 1]", endFactor)
	c.positive("totalIters", totalIters)
	c.end()
	return factor(func(step int) float64 {
		return startFactor + (endFactor-startFactor)*float64(min(totalIters, step))/float64(totalIters)
	})
}

// PolynomialLR falls to 0 over totalIters steps as (1 - step/totalIters)^power.
func PolynomialLR(totalIters int, power float64) Schedule {
	c := checks{op: "polynomial lr"}
	c.positive("totalIters", totalIters)
	c.notNegative("power", power)
	c.end()
	return factor(func(step int) float64 {
		return math.Pow(1-float64(min(totalIters, step))/float64(totalIters), power)
	})
}

// CosineAnnealingLR goes from the base to etaMin and back along a cosine, tMax
// steps each way (Loshchilov and Hutter 2017, without restarts).
func CosineAnnealingLR(tMax int, etaMin float64) Schedule {
	c := checks{op: "cosine annealing lr"}
	c.positive("tMax", tMax)
	c.notNegative("etaMin", etaMin)
	c.end()
	return func(step int, base float64) float64 {
		return cosine(base, etaMin, float64(max(step, 0)%(2*tMax))/float64(tMax))
	}
}

// cosine goes from start to end as done goes from 0 to 1.
func cosine(start, end, done float64) float64 {
	return end + (start-end)*(1+math.Cos(math.Pi*done))/2
}

// CosineAnnealingWarmRestarts falls from the base to etaMin along half a
// cosine over t0 steps, and again from the base, each time over tMult times as
// many (Loshchilov and Hutter 2017, equation 5).
func CosineAnnealingWarmRestarts(t0, tMult int, etaMin float64) Schedule {
	c := checks{op: "cosine annealing warm restarts"}
	c.positive("t0", t0)
	c.positive("tMult", tMult)
	c.notNegative("etaMin", etaMin)
	c.end()
	return func(step int, base float64) float64 {
		at, length := max(step, 0), t0
		if tMult == 1 {
			at %= t0
		}
		for at >= length {
			at -= length
			length *= tMult
		}
		return cosine(base, etaMin, float64(at)/float64(length))
	}
}

// LambdaLR multiplies by f of the step.
func LambdaLR(f func(step int) float64) Schedule { return factor(f) }

// SequentialLR runs one schedule after the other: the next begins, with its
// own step 0, at each of the increasing milestones, one fewer than schedules.
func SequentialLR(schedules []Schedule, milestones []int) Schedule {
	c := checks{op: "sequential lr"}
	c.want(len(schedules) > 0 && len(milestones) == len(schedules)-1, "%d schedules want one milestone fewer, there are %d", len(schedules), len(milestones))
	c.want(slices.IsSorted(milestones), "the milestones %v do not increase", milestones)
	c.end()
	schedules, milestones = slices.Clone(schedules), slices.Clone(milestones)
	return func(step int, base float64) float64 {
		i := sort.SearchInts(milestones, step+1)
		if i > 0 {
			step -= milestones[i-1]
		}
		return schedules[i](step, base)
	}
}

// ChainedLR applies schedules to each other: the rate of one is the base of
// the next. For those that multiply (all here but the cosine ones with an
// etaMin) that is PyTorch's ChainedScheduler.
func ChainedLR(schedules ...Schedule) Schedule {
	schedules = slices.Clone(schedules)
	return func(step int, base float64) float64 {
		for _, s := range schedules {
			base = s(step, base)
		}
		return base
	}
}

// WarmupCosine is the usual recipe for transformers: the rate rises linearly
// over numWarmup steps to the base, which the last of them has, and falls to
// floor times the base at numSteps along half a cosine.
func WarmupCosine(numWarmup, numSteps int, floor float64) Schedule {
	c := checks{op: "warmup cosine"}
	c.notNegative("floor", floor)
	c.end()
	return factor(func(step int) float64 {
		if step < numWarmup {
			return float64(step+1) / float64(numWarmup)
		}
		if step >= numSteps {
			return floor
		}
		done := float64(step-numWarmup) / float64(max(1, numSteps-numWarmup))
		return floor + (1-floor)*0.5*(1+math.Cos(math.Pi*done))
	})
}
