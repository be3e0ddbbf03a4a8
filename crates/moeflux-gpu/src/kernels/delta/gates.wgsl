// Returns the decay of a value head: exp(-exp(a_log) * softplus(a + dt_bias)).
fn decay_of(a: f32, a_log: f32, dt_bias: f32) -> f32 {
    return exp_of(-exp_of(a_log) * softplus(a + dt_bias));
}
