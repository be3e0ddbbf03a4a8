// `ws` by single values, where it is bound as such.
fn value_at(at: u32) -> f32 {
    return ws[at];
}

fn set_value(at: u32, value: f32) {
    ws[at] = value;
}
