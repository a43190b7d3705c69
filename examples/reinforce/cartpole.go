// SPDX-License-Identifier: Apache-2.0

package main

import (
	"math"

	"github.com/cohort-ml/cohort/tensor"
)

// stateSize and numActions are what a policy must know about the game. The actions are
// pushes to the left and to the right.
const (
	stateSize  = 4
	numActions = 2
	maxSteps   = 200
)

// CartPole is a pole that stands on a cart and is about to fall. It is the problem of
// Barto, Sutton and Anderson, with the usual numbers. The reward is 1 for every step in
// which the pole stands.
type CartPole struct {
	x, speed, angle, turn float64 // metres, radians, a second
	steps                 int
}

// newCartPole returns a game that begins near the middle of the track.
func newCartPole(g *tensor.Generator) *CartPole {
	near := func() float64 { return 0.1*g.Float64() - 0.05 }
	return &CartPole{x: near(), speed: near(), angle: near(), turn: near()}
}

func (p *CartPole) state() []float32 {
	return []float32{float32(p.x), float32(p.speed), float32(p.angle), float32(p.turn)}
}

// step pushes the cart for a fiftieth of a second. The game ends when the cart leaves
// the track, the pole falls, or the time is over.
func (p *CartPole) step(action int64) (reward float64, done bool) {
	const (
		gravity, force, seconds  = 9.8, 10.0, 0.02
		cart, pole, length       = 1.0, 0.1, 0.5 // kilograms; half the pole in metres
		farthest, fallen, weight = 2.4, 12 * math.Pi / 180, cart + pole
	)
	push := force
	if action == 0 {
		push = -force
	}
	sin, cos := math.Sincos(p.angle)
	pull := (push + pole*length*p.turn*p.turn*sin) / weight
	falls := (gravity*sin - cos*pull) / (length * (4.0/3 - pole*cos*cos/weight))
	drives := pull - pole*length*falls*cos/weight
	p.x += seconds * p.speed
	p.speed += seconds * drives
	p.angle += seconds * p.turn
	p.turn += seconds * falls
	p.steps++
	return 1, math.Abs(p.x) > farthest || math.Abs(p.angle) > fallen || p.steps == maxSteps
}
