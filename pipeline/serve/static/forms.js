// Selects the target of a reset when its field is filled in.
for (const field of document.querySelectorAll(".choice input:not([type=radio])")) {
  field.addEventListener("input", () => {
    field.closest(".choice").querySelector("input[type=radio]").checked = true;
  });
}
