// Names the served model.

const response = await fetch("/props");
if (response.ok) {
  const props = await response.json();
  document.getElementById("model").textContent = props.model;
}
