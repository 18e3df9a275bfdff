// Selects the target of a reset when its field is filled in, also when that was before this script ran.
for (const field of document.querySelectorAll(".choice input:not([type=radio])")) {
  const select = () => {
    field.closest(".choice").querySelector("input[type=radio]").checked = true;
  };
  field.addEventListener("input", select);
  if (field.value !== field.defaultValue) select();
}
