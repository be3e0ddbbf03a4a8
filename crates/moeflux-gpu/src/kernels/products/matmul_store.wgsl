// Writes the product of a row with row `idx` of the bound part of the weight.
fn store(row: u32, idx: u32, product: f32) {
    let output = params.first_output + idx;
    var value = product;
    if params.bias != NONE {
        value += vectors[params.bias + output];
    }
    set_value(place_of(params.out, params.step.first_row + row, 0u) + output, value);
}
